"""Ends the embedded cluster when its driver is gone, whatever ended that: Ray's own agents can outlive a SIGKILL of it.

Runs as a script in a process and session of its own; standard library only. On its standard input: one JSON line of
``[pid, start time]`` pairs, then nothing until the driver ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

#: Ray's processes get this long to end by themselves
_PATIENCE = 3.0


def start_time(pid: int) -> str | None:
    """When a process was started, in the kernel's ticks; None when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def watch() -> None:
    """Waits for the end of the driver, then for the processes, then ends what is left."""
    line = sys.stdin.readline()
    pairs = [(int(pid), str(start)) for pid, start in json.loads(line or "[]")]
    sys.stdin.read()
    deadline = time.monotonic() + _PATIENCE
    while pairs and time.monotonic() < deadline:
        pairs = [(pid, start) for pid, start in pairs if start_time(pid) == start]
        time.sleep(0.1)
    for pid, start in pairs:
        if start_time(pid) == start:
            os.kill(pid, signal.SIGKILL)


class Guardian:
    """The driver's side: ``guard`` names the processes, ``close`` (or the driver's end) lets the guardian act."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__], stdin=subprocess.PIPE, start_new_session=True, text=True
        )

    def guard(self, pids: list[int]) -> None:
        """Hands over the processes that must not outlive this one; once."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([[pid, start_time(pid)] for pid in pids]) + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """The cluster was ended: waits until the guardian has seen that."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(_PATIENCE + 5)


if __name__ == "__main__":
    watch()
