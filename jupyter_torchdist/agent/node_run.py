"""One run on one node: starts its ranks, watches them, and hands over what they say."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from jupyter_torchdist.agent.forkclient import Channel, Forkserver, environment_file, memory_file
from jupyter_torchdist.agent.memory import death_hint, oom_kills
from jupyter_torchdist.agent.node import listen
from jupyter_torchdist.agent.rank_io import RankIO
from jupyter_torchdist.agent.stacks import cpu_seconds, parse
from jupyter_torchdist.records import (
    AgentBatch,
    Frame,
    NodeRun,
    Payload,
    RankEvent,
    RankLook,
    RankPhase,
    RankSpec,
    RankValue,
    Shown,
    error_from_plain,
)
from jupyter_torchdist.run_folder import RunFolder
from jupyter_torchdist.worker.environment import rank_environment
from jupyter_torchdist.worker.payload import lay_out
from jupyter_torchdist.worker.rank import STACK_SIGNAL

#: how long reports are gathered before they are handed over: 20 messages a second at most
_GATHER_SECONDS = 0.05
_POLL_SECONDS = 10.0
#: a rank that does not write its stack within this time does not answer
_STACK_SECONDS = 2.0


class LocalRun:
    """The agent's state of one run; ``end`` leaves nothing of it."""

    def __init__(self, run_id: str, forkserver: Forkserver) -> None:
        self.run_id = run_id
        self._keeper: Channel = forkserver.keeper(self._message)
        self._io: dict[int, RankIO] = {}
        self._events: list[RankEvent] = []
        self._notes: list[tuple[int, Mapping[str, Any]]] = []
        self._problems: dict[int, str] = {}
        self._news = asyncio.Event()
        self._ended = asyncio.Event()
        self._running: set[int] = set()
        self._pids: dict[int, int] = {}
        self._shown = Shown()
        self._oom_kills = oom_kills()
        self._ending = False
        self._scratch = Path(tempfile.mkdtemp(prefix="torchdist-"))
        self._control = os.memfd_create("torchdist-control", os.MFD_CLOEXEC)
        os.write(self._control, b"\0")

    def open_store(self, address: str, world_size: int) -> int:
        """Starts the rendezvous store on a free port of ``address``; the port."""
        with listen(address) as sock:
            null = os.open(os.devnull, os.O_WRONLY)
            message = {"op": "start", "key": "store", "kind": "store", "address": address, "world_size": world_size}
            self._keeper.send(message, [null, sock.fileno()])
            os.close(null)
            return int(sock.getsockname()[1])

    def start(self, request: NodeRun, payload: Payload, base_env: Mapping[str, str], fork: bool) -> None:
        """Starts the ranks of ``request`` on this node."""
        folder = RunFolder(Path(request.folder))
        self._shown = request.shown
        payload_fd = lay_out(payload)
        try:
            for spec in request.ranks:
                self._start_rank(spec, request, base_env, folder, payload_fd, fork)
        finally:
            os.close(payload_fd)

    def _start_rank(
        self,
        spec: RankSpec,
        request: NodeRun,
        base_env: Mapping[str, str],
        folder: RunFolder,
        payload_fd: int,
        fork: bool,
    ) -> None:
        rank = spec.rank
        spec = replace(spec, scratch=str(self._scratch), env=rank_environment(base_env, request.env, spec))
        io = RankIO(folder.log(rank), lambda event: self._rank_said(rank, event), keep_output=rank == 0)
        self._io[rank] = io
        self._running.add(rank)
        fds = [
            io.output_end,
            memory_file("torchdist-spec", pickle.dumps(spec)),
            io.event_end,
            io.report_descriptor(),
            self._control,
            payload_fd,
            io.stack_descriptor(),
            environment_file(spec.env),
        ]
        self._keeper.send({"op": "start", "key": str(rank), "kind": "rank", "fork": fork}, fds)
        for fd in (fds[1], fds[3], fds[6], fds[7]):
            os.close(fd)
        io.started()

    def request_stop(self) -> None:
        """``should_stop()`` is true on every rank from here on."""
        os.pwrite(self._control, b"\1", 0)

    def signal(self, ranks: list[int], number: int) -> None:
        """Sends a signal to the processes of ranks that still run."""
        self._keeper.send({"op": "signal", "keys": [str(r) for r in ranks if r in self._running], "signal": number})

    async def look(self, stacks: bool) -> list[RankLook]:
        """The ranks that run here, with where they stand when ``stacks`` are asked for."""
        found = []
        for rank in sorted(self._running & self._pids.keys()):
            with contextlib.suppress(OSError):  # it has just ended
                found.append(RankLook(rank, cpu_seconds(self._pids[rank]), time.monotonic()))
        if not stacks:
            return found
        for look in found:
            self._io[look.rank].clear_stack()
        self.signal([look.rank for look in found], STACK_SIGNAL)
        frames = await asyncio.gather(*(self._stack(look.rank) for look in found))
        return [replace(look, frames=one) for look, one in zip(found, frames, strict=True)]

    async def _stack(self, rank: int) -> tuple[Frame, ...] | None:
        """What a rank wrote: faulthandler does not say where it ends, so the end is when nothing more comes."""
        io = self._io[rank]
        deadline = time.monotonic() + _STACK_SECONDS
        size, steady = 0, 0
        while time.monotonic() < deadline and rank in self._running and steady < 3:
            await asyncio.sleep(0.01)
            steady = steady + 1 if size and size == io.stack_size() else 0
            size = io.stack_size()
        return parse(io.read_stack(), self._shown) if size else None

    async def next_batch(self) -> AgentBatch:
        """Waits for news (10 s at most), gathers a moment's reports, hands over everything new."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _POLL_SECONDS
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), _GATHER_SECONDS)
            batch = self._take()
            if batch.reports or batch.output or batch.events or batch.notes or loop.time() > deadline:
                return batch

    def _take(self) -> AgentBatch:
        self._news.clear()
        events, self._events = tuple(self._events), []
        notes, self._notes = tuple(self._notes), []
        reports = b"".join(io.take_reports() for io in self._io.values())
        output = self._io[0].take_output() if 0 in self._io else b""
        moved = bool(reports) or any(io.moved for io in self._io.values())
        for io in self._io.values():
            io.moved = False
        return AgentBatch(reports, output, events, notes, moved)

    def values(self, ranks: list[int]) -> list[RankValue]:
        """What the train function returned on these ranks, pickled."""
        found = []
        for rank in ranks:
            file = self._scratch / f"value-{rank}"
            data = file.read_bytes() if file.exists() else None
            found.append(RankValue(rank, data, self._problems.get(rank, "")))
        return found

    async def end(self) -> None:
        """Ends every process of the run on this node and removes what it used."""
        self._ending = True
        self._keeper.send({"op": "end"})
        await self._ended.wait()
        for io in self._io.values():
            io.close()
        self._io.clear()
        os.close(self._control)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _message(self, message: Mapping[str, Any] | None) -> None:
        if message is None:
            self._ended.set()
            if not self._ending:
                for rank in sorted(self._running):
                    self._exited(rank, signal.SIGKILL, 0)
        elif message["op"] == "exit" and message["key"] != "store":
            self._exited(int(message["key"]), message["status"], message["max_rss"])

    def _exited(self, rank: int, status: int, max_rss: int) -> None:
        self._running.discard(rank)
        io = self._io[rank]
        io.drain()
        killed = os.WIFSIGNALED(status)
        name = signal.Signals(os.WTERMSIG(status)).name if killed else None
        tail = "\n".join(io.tail.splitlines()[-20:])
        for_memory = name == "SIGKILL" and oom_kills() > self._oom_kills
        self._add_event(
            RankEvent(
                rank,
                RankPhase.EXITED,
                time.time(),
                exitcode=None if killed else os.WEXITSTATUS(status),
                signal=name,
                max_rss=max_rss * 1024,
                tail=tail,
                hint=death_hint(name, max_rss * 1024, tail, for_memory),
            )
        )

    def _rank_said(self, rank: int, event: Mapping[str, Any]) -> None:
        if "note" in event:
            self._notes.append((rank, event["note"]))
            self._news.set()
            return
        if event.get("pid"):
            self._pids[rank] = event["pid"]
        error = event.get("error")
        if event.get("problem"):
            self._problems[rank] = event["problem"]
        self._add_event(
            RankEvent(
                rank,
                RankPhase(event["phase"]),
                event["time"],
                pid=event.get("pid", 0),
                error=error_from_plain(error) if error else None,
                exitcode=event.get("exitcode"),
                problem=event.get("problem", ""),
            )
        )

    def _add_event(self, event: RankEvent) -> None:
        self._events.append(event)
        self._news.set()
