"""The records of a run on disk, and the one writer of them: metrics, events, ``run.json``."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import orjson

from jupyter_torchdist.run_folder import RunFolder

_MAX_READ = 1 << 20
_TAIL_BYTES = 65_536
_RANK0 = b'{"rank":0,'


class Journal:
    """Appends to ``metrics.jsonl`` and ``events.jsonl``; counts what the run view shows."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._metrics = open(folder.metrics, "ab", buffering=0)  # noqa: SIM115  closed in close()
        self._events = open(folder.events, "ab", buffering=0)  # noqa: SIM115
        self._read = os.open(folder.metrics, os.O_RDONLY | os.O_CLOEXEC)
        self.size = 0
        self.reports = 0
        self.step: int | None = None
        self._recent: deque[tuple[float, int]] = deque(maxlen=64)
        self._output = bytearray()
        self.output_total = 0

    def add_reports(self, lines: bytes) -> None:
        """Whole lines, as they come from the ranks."""
        if not lines:
            return
        self._metrics.write(lines)
        self.size += len(lines)
        count = lines.count(b"\n" + _RANK0) + lines.startswith(_RANK0)
        if count:
            self.reports += count
            last = lines.rfind(b"\n" + _RANK0, 0, len(lines) - 1) + 1
            self.step = orjson.loads(lines[last : lines.index(b"\n", last)])["step"]
            self._recent.append((time.monotonic(), self.reports))

    def add_event(self, event: str, **more: Any) -> None:
        """One line of ``events.jsonl``."""
        line = {"time": time.time(), "event": event, **more}
        self._events.write(orjson.dumps(line, default=str) + b"\n")

    def add_output(self, data: bytes) -> None:
        """The newest output of rank 0, for the run view."""
        self.output_total += len(data)
        self._output = (self._output + data)[-_TAIL_BYTES:]

    @property
    def output(self) -> bytes:
        return bytes(self._output)

    @property
    def rate(self) -> float:
        """Reports of rank 0 a second, over the last seconds."""
        now = time.monotonic()
        recent = [row for row in self._recent if now - row[0] < 5]
        if len(recent) < 2 or recent[-1][0] == recent[0][0]:
            return 0.0
        return (recent[-1][1] - recent[0][1]) / (recent[-1][0] - recent[0][0])

    def rank0_from(self, cursor: int) -> tuple[bytes, int]:
        """Rank 0's lines behind ``cursor`` (at most 1 MiB is read) and the next cursor."""
        data = os.pread(self._read, _MAX_READ, cursor)
        data = data[: data.rfind(b"\n") + 1]
        if data.count(_RANK0) == data.count(b"\n"):
            return data, cursor + len(data)
        lines = [line for line in data.splitlines(keepends=True) if line.startswith(_RANK0)]
        return b"".join(lines), cursor + len(data)

    def write_run(self, record: Mapping[str, Any], durable: bool) -> None:
        self.folder.write_run(record, durable)

    def close(self) -> None:
        self._metrics.close()
        self._events.close()
        os.close(self._read)
