"""The agent's side of the forkserver: starts it, and asks it for keepers."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from jupyter_torchdist.agent.forkserver import receive, send

Listener = Callable[[Mapping[str, Any] | None], None]


class Channel:
    """A socket to a process of ours on the event loop; ``listener`` gets each message, and None at the end."""

    def __init__(self, sock: socket.socket, listener: Listener) -> None:
        self._sock = sock
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self.closed = False
        self._loop.add_reader(sock.fileno(), self._readable)

    def send(self, message: Mapping[str, Any], fds: list[int] | None = None) -> None:
        """Sends one message; one to a process that is gone is dropped: the listener is told of the end."""
        if self.closed:
            return
        try:
            send(self._sock, dict(message), fds)
        except OSError:
            self._loop.call_soon(self._end)

    def close(self) -> None:
        """Closes our end, which the other side takes for the order to end."""
        if not self.closed:
            self.closed = True
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()

    def _readable(self) -> None:
        try:
            message, _ = receive(self._sock)
        except ConnectionError:
            message = None
        if message is None:
            self._end()
        else:
            self._listener(message)

    def _end(self) -> None:
        if not self.closed:
            self.close()
            self._listener(None)


class Forkserver:
    """One forkserver process with an environment of its own. ``close`` ends it and everything below it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # one BLAS thread while loading: a process with a thread pool could not fork
        env = {"OPENBLAS_NUM_THREADS": "1", **environment}
        command = [sys.executable, "-m", "jupyter_torchdist.agent.forkserver", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                command, env=env, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, close_fds=True
            )
        self._ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.problems: list[str] = []
        self._channel = Channel(ours, self._message)

    async def ready(self) -> bool:
        """Waits until torch is loaded; whether forking is safe. Raises ``RuntimeError`` when the process ended."""
        return await asyncio.shield(self._ready)

    def keeper(self, listener: Listener) -> Channel:
        """A keeper for one run: a channel to a new process that starts and buries its ranks."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._channel.send({"op": "keeper"}, [theirs.fileno()])
        return Channel(ours, listener)

    @property
    def alive(self) -> bool:
        return not self._channel.closed

    def close(self) -> None:
        self._channel.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _message(self, message: Mapping[str, Any] | None) -> None:
        if message is None:
            if not self._ready.done():
                self._ready.set_exception(RuntimeError("the forkserver ended while it loaded torch"))
            self._process.poll()
        elif message["op"] == "ready" and not self._ready.done():
            self.problems = list(message["problems"])
            self._ready.set_result(bool(message["fork"]))


def memory_file(name: str, data: bytes) -> int:
    """A memory file with ``data``; the descriptor is the caller's to close."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    os.write(fd, data)
    return fd


def environment_file(env: Mapping[str, str]) -> int:
    """The environment of a spawned rank, as a memory file."""
    return memory_file("torchdist-env", orjson.dumps(dict(env)))
