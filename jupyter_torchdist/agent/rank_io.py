"""The agent's ends of one rank's pipes: its output, its events, its reports."""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

_F_SETPIPE_SZ = 1031
_PIPE_SIZE = 1 << 20
_READ = 1 << 18
_TAIL = 16_384
_FALLOC_FL_KEEP_SIZE, _FALLOC_FL_PUNCH_HOLE = 1, 2
_libc = ctypes.CDLL(None, use_errno=True)


class RankIO:
    """Opens the pipes of a rank, writes its log and gathers the rest. ``close`` drains and closes everything."""

    def __init__(self, log: Path, on_event: Callable[[Mapping[str, Any]], None], keep_output: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_event = on_event
        self._keep = keep_output
        self._log = open(log, "ab", buffering=0)  # noqa: SIM115  closed in close()
        self._output, self.output_end = os.pipe2(os.O_CLOEXEC)
        self._events, self.event_end = os.pipe2(os.O_CLOEXEC)
        self.reports = os.memfd_create("torchdist-reports", os.MFD_CLOEXEC)
        self._stack = os.memfd_create("torchdist-stack", os.MFD_CLOEXEC)
        self.moved = False
        os.set_blocking(self._output, False)
        os.set_blocking(self._events, False)
        _set_pipe_size(self._output)
        self._read_to = 0
        self._event_rest = b""
        self._new_output = bytearray()
        self._tail = bytearray()
        self._loop.add_reader(self._output, self._read_output)
        self._loop.add_reader(self._events, self._read_events)

    def report_descriptor(self) -> int:
        """A new descriptor for the rank; appends of several processes of a rank do not overwrite each other."""
        return _appending(self.reports)

    def stack_descriptor(self) -> int:
        """A new descriptor for the rank's stacks."""
        return _appending(self._stack)

    def clear_stack(self) -> None:
        """Forgets the last stack."""
        os.ftruncate(self._stack, 0)

    def stack_size(self) -> int:
        """How much of a stack is written by now, in bytes."""
        return os.fstat(self._stack).st_size

    def read_stack(self) -> str:
        """The stack as faulthandler wrote it."""
        return os.pread(self._stack, self.stack_size(), 0).decode("utf-8", "replace")

    def started(self) -> None:
        """The rank has its ends: ours of them are closed, so that its end is seen."""
        for fd in (self.output_end, self.event_end):
            os.close(fd)

    def take_reports(self) -> bytes:
        """Whole lines that were reported since the last call; their memory is given back."""
        size = os.fstat(self.reports).st_size
        if size == self._read_to:
            return b""
        data = os.pread(self.reports, size - self._read_to, self._read_to)
        data = data[: data.rfind(b"\n") + 1]
        hole = _FALLOC_FL_KEEP_SIZE | _FALLOC_FL_PUNCH_HOLE
        _libc.fallocate(self.reports, hole, ctypes.c_long(self._read_to), ctypes.c_long(len(data)))
        self._read_to += len(data)
        return data

    def take_output(self) -> bytes:
        """The newest output since the last call, at most 16 KiB; all of it is in the log."""
        data = bytes(self._new_output)
        self._new_output.clear()
        return data

    @property
    def tail(self) -> str:
        """The last lines of the output."""
        return bytes(self._tail).decode("utf-8", "replace")

    def drain(self) -> None:
        """Reads what is in the pipes now; an open end that a child kept does not hold this up."""
        self._read_events()
        while self._read_output():
            pass

    def close(self) -> None:
        self.drain()
        for fd in (self._output, self._events):
            self._loop.remove_reader(fd)
            os.close(fd)
        os.close(self.reports)
        os.close(self._stack)
        self._log.close()

    def _read_output(self) -> bool:
        try:
            data = os.read(self._output, _READ)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._output)
            return False
        self._log.write(data)
        self.moved = True
        self._tail = (self._tail + data[-_TAIL:])[-_TAIL:]
        if self._keep:
            self._new_output = (self._new_output + data[-_TAIL:])[-_TAIL:]
        return True

    def _read_events(self) -> None:
        while True:
            try:
                data = os.read(self._events, _READ)
            except BlockingIOError:
                return
            if not data:
                self._loop.remove_reader(self._events)
                return
            *lines, self._event_rest = (self._event_rest + data).split(b"\n")
            for line in lines:
                self._on_event(orjson.loads(line))


def _appending(fd: int) -> int:
    return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)


def _set_pipe_size(fd: int) -> None:
    import fcntl

    try:
        fcntl.fcntl(fd, _F_SETPIPE_SZ, _PIPE_SIZE)
    except OSError:  # above the system's limit for this user: the default size works too
        return
