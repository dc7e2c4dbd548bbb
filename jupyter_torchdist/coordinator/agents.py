"""The NodeAgents of a session: one a node, started when first needed, warm until the session ends."""

from __future__ import annotations

import asyncio
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from jupyter_torchdist.agent.actor import NodeAgent
from jupyter_torchdist.records import NodeInfo


class Agent:
    """A NodeAgent actor and what it said of its node."""

    def __init__(self, actor: Any, info: NodeInfo) -> None:
        self.actor = actor
        self.info = info

    async def ask(self, method: str, *args: Any) -> Any:
        """Calls a method and waits for its answer. Raises Ray's error when the agent is gone."""
        return await getattr(self.actor, method).remote(*args)

    def call(self, method: str, *args: Any) -> None:
        """Calls a method; calls of one caller arrive in their order, and nobody waits for this one."""
        getattr(self.actor, method).remote(*args)


class Agents:
    """Agents by node."""

    def __init__(self) -> None:
        self._agents: dict[str, asyncio.Task[Agent]] = {}

    async def get(self, node_id: str, address: str) -> Agent:
        """The agent of a node, started if there is none."""
        task = self._agents.get(node_id)
        if task is None or (task.done() and task.exception() is not None):
            task = self._agents[node_id] = asyncio.get_running_loop().create_task(_start(node_id, address))
        return await asyncio.shield(task)

    def forget(self, agent: Agent) -> None:
        """Drops an agent that is gone; the next run on its node gets a new one."""
        self._agents.pop(agent.info.node_id, None)

    def clear(self) -> None:
        """Drops all of them."""
        self._agents.clear()


async def _start(node_id: str, address: str) -> Agent:
    strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
    actor = (
        ray.remote(NodeAgent).options(num_cpus=0, max_concurrency=1000, scheduling_strategy=strategy).remote(address)
    )
    return Agent(actor, await actor.warm.remote())
