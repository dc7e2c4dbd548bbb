"""The forkserver: one single-threaded process a node that has torch loaded, and forks a keeper for each run.

forkserver ─ keeper of run A ─ rank 0, rank 1, the store        A keeper adopts what its ranks leave behind
           └ keeper of run B ─ …                               (child subreaper), so the end of a run is the end of all.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import select
import signal
import socket
import sys
from dataclasses import replace
from typing import Any, NoReturn

import orjson

from jupyter_torchdist.records import RankSpec
from jupyter_torchdist.worker import preload
from jupyter_torchdist.worker.rank import die_with_parent, name_process, run_rank

_PR_SET_CHILD_SUBREAPER = 36
_MAX_MESSAGE = 4096
_MAX_FDS = 8
_libc = ctypes.CDLL(None, use_errno=True)


def send(sock: socket.socket, message: dict[str, Any], fds: list[int] | None = None) -> None:
    """One datagram, with descriptors."""
    socket.send_fds(sock, [orjson.dumps(message)], fds or [])


def receive(sock: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """The next datagram, None at the end."""
    data, fds, _, _ = socket.recv_fds(sock, _MAX_MESSAGE, _MAX_FDS)
    return (orjson.loads(data) if data else None), fds


class _Children:
    """The children of this process by key; ends are seen through SIGCHLD and a pipe that wakes the loop."""

    def __init__(self) -> None:
        self.pids: dict[int, str] = {}
        self.wake, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._write = write
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def forked(self) -> None:
        """In a new child: nothing of the parent's bookkeeping stays."""
        signal.set_wakeup_fd(-1)
        os.close(self.wake)
        os.close(self._write)
        self.pids.clear()

    def reap(self) -> list[tuple[str, int, int]]:
        """(key, wait status, peak memory in KiB) of each child that ended; adopted orphans are only buried."""
        ended = []
        try:
            while os.read(self.wake, 4096):
                pass
        except BlockingIOError:
            pass
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if (key := self.pids.pop(pid, None)) is not None:
                ended.append((key, status, usage.ru_maxrss))
        return ended


def descendants(pid: int) -> list[int]:
    """Every process below ``pid``."""
    found: list[int] = []
    queue = [pid]
    while queue:
        parent = queue.pop()
        try:
            threads = os.listdir(f"/proc/{parent}/task")
        except OSError:
            continue
        for thread in threads:
            try:
                with open(f"/proc/{parent}/task/{thread}/children") as file:
                    children = [int(word) for word in file.read().split()]
            except OSError:
                continue
            found += children
            queue += children
    return found


def kill_descendants() -> None:
    """Ends everything below this process; what is forked meanwhile is met in the next round."""
    while True:
        below = descendants(os.getpid())
        for pid in below:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        try:
            os.wait()
        except ChildProcessError:
            return


def serve(sock: socket.socket) -> NoReturn:
    """The forkserver's loop: forks a keeper for each socket that it is sent; ends when its agent is gone."""
    os.setsid()
    name_process("torchdist-fork")
    # the thread of Ray that started this process may have signals blocked, and a mask is inherited
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    problems = preload.preload()
    children = _Children()
    safe = not problems and preload.may_fork()
    send(sock, {"op": "ready", "fork": safe, "problems": problems})
    while True:
        ready = _readable(sock.fileno(), children.wake)
        children.reap()
        _end_orphans(set(children.pids))
        if sock.fileno() in ready:
            message, fds = receive(sock)
            if message is None:
                # the keepers see the end of the agent too, and end what is below them
                os._exit(0)
            pid = os.fork()
            if pid == 0:
                children.forked()
                sock.close()
                _keep(socket.socket(fileno=fds[0]))
            children.pids[pid] = "keeper"
            for fd in fds:
                os.close(fd)


def _readable(*fds: int) -> list[int]:
    return select.select(fds, [], [])[0]


def _end_orphans(keepers: set[int]) -> None:
    """Ends what a keeper left that did not end by itself: it is adopted by this process."""
    with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children") as file:
        orphans = [int(word) for word in file.read().split() if int(word) not in keepers]
    for pid in orphans:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _keep(sock: socket.socket) -> NoReturn:
    """The keeper's loop: starts, signals and buries the processes of one run; its end is theirs."""
    # no signal at the parent's death: a keeper must outlive the forkserver long enough to end what is below it
    name_process("torchdist-keep")
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    children = _Children()
    while True:
        ready = _readable(sock.fileno(), children.wake)
        message: dict[str, Any] | None = {}
        fds: list[int] = []
        if sock.fileno() in ready:
            message, fds = receive(sock)
        if message is None or message.get("op") == "end":
            kill_descendants()
            os._exit(0)
        if message.get("op") == "start":
            _start(sock, children, message, fds)
        elif message.get("op") == "signal":
            _signal(children, message["keys"], message["signal"])
        try:
            for key, status, max_rss in children.reap():
                send(sock, {"op": "exit", "key": key, "status": status, "max_rss": max_rss})
        except OSError:  # the agent is gone
            kill_descendants()
            os._exit(0)


def _signal(children: _Children, keys: list[str], number: int) -> None:
    for pid, key in list(children.pids.items()):
        if key in keys:
            # the child is not buried yet, so the number is still its own
            os.kill(pid, number)


def _start(sock: socket.socket, children: _Children, message: dict[str, Any], fds: list[int]) -> None:
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            children.forked()
            sock.close()
            os.setsid()
            die_with_parent(parent)
            _stand_alone(fds[0])
            code = _serve_store(message, fds) if message["kind"] == "store" else _run(message, fds)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    children.pids[pid] = message["key"]
    for fd in fds:
        os.close(fd)


def _stand_alone(output: int) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(null)
    os.close(output)


def _serve_store(message: dict[str, Any], fds: list[int]) -> int:
    from jupyter_torchdist.worker.process_group import serve_store

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve_store(message["address"], fds[1], message["world_size"])
    return 0


def _run(message: dict[str, Any], fds: list[int]) -> int:
    """``fds``: output, spec, events, reports, control, payload, stack, environment."""
    if not message["fork"]:
        for fd in fds[1:]:
            os.set_inheritable(fd, True)
        env = orjson.loads(os.pread(fds[7], os.fstat(fds[7]).st_size, 0))
        command = f"from jupyter_torchdist.agent.forkserver import run_spawned; run_spawned({fds[:7]})"
        os.execve(sys.executable, [sys.executable, "-u", "-c", command], env)
    return run_rank(_spec(fds))


def _spec(fds: list[int]) -> RankSpec:
    spec: RankSpec = pickle.loads(os.pread(fds[1], os.fstat(fds[1]).st_size, 0))
    os.close(fds[1])
    return replace(spec, event_fd=fds[2], report_fd=fds[3], control_fd=fds[4], payload_fd=fds[5], stack_fd=fds[6])


def run_spawned(fds: list[int]) -> NoReturn:
    """The start of a rank in a fresh interpreter, where forking is not safe."""
    for fd in fds[1:]:
        os.set_inheritable(fd, False)
    os._exit(run_rank(_spec(fds)))


if __name__ == "__main__":
    # a rank pickles by module name, and its __main__ is the user's: the loop must run as the importable module
    from jupyter_torchdist.agent import forkserver

    forkserver.serve(socket.socket(fileno=int(sys.argv[1])))
