"""The Coordinator: one Ray actor a session, on the notebook's node so that it can write the notebook's stage."""

from __future__ import annotations

from typing import Any

import ray

from jupyter_torchdist.coordinator.agents import Agents
from jupyter_torchdist.coordinator.run import Run
from jupyter_torchdist.records import Frame, NodeInfo, RankValue, RunRequest, RunUpdate

#: ended runs that are still answered for
_KEEP = 50


class Coordinator:
    """Takes runs, and answers the polls about them."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._agents = Agents()

    async def warm(self, node_id: str, address: str) -> NodeInfo:
        """Starts the agent of a node and its forkserver ahead of the first run."""
        return (await self._agents.get(node_id, address)).info

    async def submit(self, request: RunRequest, payload: list[Any]) -> None:
        """Begins a run; ``payload`` holds one ``Payload`` or a reference to one."""
        ended = [run_id for run_id, run in self._runs.items() if run.done.is_set()]
        for run_id in ended[: max(0, len(ended) - _KEEP)]:
            self._runs.pop(run_id).close()
        self._runs[request.run_id] = Run(request, payload, self._agents)

    async def update(self, run_id: str, cursor: int, revision: int) -> RunUpdate:
        """See ``Run.update``."""
        return await self._runs[run_id].update(cursor, revision)

    async def stop(self, run_id: str, force: bool) -> None:
        self._runs[run_id].stop(force)

    async def stacks(self, run_id: str) -> dict[int, tuple[Frame, ...] | None]:
        """Where each running rank stands: the frames of its train function, outermost first."""
        return {rank: look.frames for rank, look in (await self._runs[run_id].look()).items()}

    async def take_values(self, run_id: str) -> list[RankValue]:
        return self._runs[run_id].take_values()

    async def active(self) -> list[str]:
        """The ids of the runs that have not ended."""
        return [run_id for run_id, run in self._runs.items() if not run.done.is_set()]

    async def close(self) -> None:
        """Stops what runs, now, and waits for the ends."""
        for run in self._runs.values():
            if not run.done.is_set():
                run.stop(force=True)
        for run in self._runs.values():
            await run.done.wait()


def start_coordinator(node_id: str) -> Any:
    """A coordinator on the given node; it dies with the process that started it."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return ray.remote(Coordinator).options(num_cpus=0, max_concurrency=1000, scheduling_strategy=strategy).remote()
