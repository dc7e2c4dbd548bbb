"""A process of its own for each way to do a thing, so that none runs beside the threads and imports of another.

The way is a context manager: what stands before its ``yield`` is prepared once, what it yields is called a round.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import psutil

_ROOT = Path(__file__).resolve().parent.parent
_START_SECONDS = 90
_END_SECONDS = 30


class NotMeasured(Exception):
    """Why a way could not be measured, in a line."""


class Host:
    """The process of ``module.way``; ``close`` ends it and everything that it has started."""

    def __init__(self, module: str, way: str) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed in close()
        self._line, theirs = Pipe()
        command = [sys.executable, "-m", "benchmarks.host", module, way, str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                command,
                cwd=_ROOT,
                env=_environment(),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
            )
        try:
            self._answer(_START_SECONDS)
        except NotMeasured:
            self.close()
            raise

    def ask(self, argument: Any, seconds: float) -> Any:
        """One round; its answer. Raises ``NotMeasured`` when it failed or took longer."""
        with contextlib.suppress(OSError):  # the process ended: its answer says so
            self._line.send(argument)
        return self._answer(seconds)

    def close(self) -> None:
        """Lets it end by itself, then ends what is left of it."""
        below = _below(self._process.pid)
        self._line.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        for process in below:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self._process.kill()
        self._process.wait()
        self._log.close()

    def _answer(self, seconds: float) -> Any:
        if not self._line.poll(seconds):
            raise NotMeasured(f"no answer within {seconds:g} s")
        try:
            done, answer = self._line.recv()
        except (EOFError, ConnectionError):
            raise NotMeasured(f"its process ended: {self._last_line()}") from None
        if not done:
            raise NotMeasured(answer)
        return answer

    def _last_line(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "without a word")


def _environment() -> dict[str, str]:
    """For all alike: this package is found, names are not looked up, nothing is sent anywhere."""
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo", "RAY_USAGE_STATS_ENABLED": "0"}


def _below(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def serve(module: str, way: str, fd: int) -> None:
    """The process's side: prepares, then answers each argument with what the round returns, until the line closes."""
    os.set_inheritable(fd, False)
    line = Connection(fd)
    try:
        with getattr(importlib.import_module(module), way)() as call:
            line.send((True, None))
            for argument in _arguments(line):
                line.send((True, call(argument)))
    except Exception as exc:
        text = next((part for part in str(exc).splitlines() if part.strip()), "")
        line.send((False, f"{type(exc).__name__}: {text.strip()}"[:200]))
        raise


def _arguments(line: Connection) -> Iterator[Any]:
    with contextlib.suppress(EOFError):
        while True:
            yield line.recv()


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], int(sys.argv[3]))
