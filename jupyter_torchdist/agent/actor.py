"""The NodeAgent: one Ray actor a node, warm between runs; holds no resources, for the run's bundle does."""

from __future__ import annotations

import socket
from typing import Any

import ray

from jupyter_torchdist.agent.forkclient import Forkserver
from jupyter_torchdist.agent.node import node_info
from jupyter_torchdist.agent.node_run import LocalRun
from jupyter_torchdist.config import setting
from jupyter_torchdist.records import AgentBatch, NodeInfo, NodeRun, OpenedRun, RankLook, RankValue
from jupyter_torchdist.worker.environment import load_environment, node_environment

#: forkservers with load-time variables of their own that are kept warm beside the ordinary one
_MAX_EXTRA_FORKSERVERS = 2


class NodeAgent:
    """Starts, watches and ends the ranks of its node."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._env = node_environment()
        self._forkservers: dict[tuple[tuple[str, str], ...], Forkserver] = {}
        self._runs: dict[str, LocalRun] = {}

    async def warm(self) -> NodeInfo:
        """Starts loading torch; returns what the node is, at once."""
        self._forkserver(())
        return node_info(ray.get_runtime_context().get_node_id(), self._address)

    async def ready(self) -> bool:
        """Waits until torch is loaded."""
        return await self._forkserver(()).ready()

    async def open_run(self, run_id: str, env: dict[str, str | None], store_address: str, world_size: int) -> OpenedRun:
        """Makes ready for a run; with ``store_address`` its rendezvous store starts here."""
        forkserver = self._forkserver(tuple(load_environment(env).items()))
        notes = () if await forkserver.ready() else (_slow_start(forkserver.problems),)
        run = self._runs[run_id] = LocalRun(run_id, forkserver)
        return OpenedRun(run.open_store(store_address, world_size) if store_address else 0, notes)

    async def start(self, request: NodeRun, payload: list[Any]) -> None:
        """Starts the ranks; ``payload`` holds one ``Payload`` or a reference to one."""
        load = tuple(load_environment(request.env).items())
        fork = await self._forkserver(load).ready() and setting("START_METHOD", "fork") != "spawn"
        value = payload[0]
        if isinstance(value, ray.ObjectRef):
            value = await value
        self._runs[request.run_id].start(request, value, {**self._env, **dict(load)}, fork)

    async def next_batch(self, run_id: str) -> AgentBatch:
        """News of a run; waits for some."""
        return await self._runs[run_id].next_batch()

    async def look(self, run_id: str, stacks: bool) -> list[RankLook]:
        """The ranks of a run that still run; see ``LocalRun.look``."""
        return await self._runs[run_id].look(stacks) if run_id in self._runs else []

    async def request_stop(self, run_id: str) -> None:
        self._runs[run_id].request_stop()

    async def signal(self, run_id: str, ranks: list[int], number: int) -> None:
        if run_id in self._runs:
            self._runs[run_id].signal(ranks, number)

    async def values(self, run_id: str, ranks: list[int]) -> list[RankValue]:
        return self._runs[run_id].values(ranks)

    async def end_run(self, run_id: str) -> None:
        """Ends what is left of a run; harmless for one that is not here."""
        run = self._runs.pop(run_id, None)
        if run is not None:
            await run.end()

    def _forkserver(self, load: tuple[tuple[str, str], ...]) -> Forkserver:
        found = self._forkservers.get(load)
        if found is None or not found.alive:
            extra = [key for key in self._forkservers if key]
            if load and len(extra) >= _MAX_EXTRA_FORKSERVERS and not self._runs:
                self._forkservers.pop(extra[0]).close()
            found = self._forkservers[load] = Forkserver({**self._env, **dict(load)})
        return found


def _slow_start(problems: list[str]) -> str:
    why = "; ".join(problems) or "importing torch started threads or touched CUDA"
    return f"ranks on {socket.gethostname()} start in fresh interpreters, which takes seconds: {why}"
