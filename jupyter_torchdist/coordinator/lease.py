"""The resources of a run: whether they can be had at all, and the placement group that holds them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from jupyter_torchdist.config import PyTorchScalingConfig
from jupyter_torchdist.errors import NotEnoughResources

#: what a run reserves where it reserves nothing else, so that it has a place
SLOT = "torchdist_slot"


@dataclass(frozen=True)
class Place:
    """Where one node of a run is, and its GPUs as CUDA_VISIBLE_DEVICES names them."""

    node_id: str
    address: str
    gpu_ids: tuple[str, ...] = ()


def bundle(scaling: PyTorchScalingConfig, local: bool) -> dict[str, float]:
    """What one node of the run reserves. On the local cluster CPUs are shared, GPUs never."""
    each = scaling.resource_requirements_per_worker
    workers = scaling.num_workers_per_node
    wanted: dict[str, float] = {SLOT: 1} if local else {"CPU": each.num_cpus * workers or 0.001}
    if each.num_gpus:
        wanted["GPU"] = each.num_gpus * workers
    return wanted


def check(scaling: PyTorchScalingConfig, nodes: Sequence[Mapping[str, Any]], local: bool) -> None:
    """Raises ``NotEnoughResources``, with both numbers, when ``nodes`` can never hold the run."""
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    each = scaling.resource_requirements_per_worker
    count, workers = scaling.num_nodes, scaling.num_workers_per_node
    gpus = count * workers * each.num_gpus
    have = int(sum(r.get("GPU", 0) for r in alive))
    if gpus > have:
        raise NotEnoughResources(
            f"asked for {gpus} GPUs ({count} nodes × {workers} workers × {each.num_gpus}); the cluster has {have}. "
            "Use --gpus 0, fewer workers, or --address of a larger cluster."
        )
    if local:
        return
    if count > len(alive):
        raise NotEnoughResources(
            f"asked for {count} nodes; the cluster has {len(alive)}. Use --nodes {len(alive)}, or add nodes."
        )
    wanted = bundle(scaling, local)
    able = [r for r in alive if all(r.get(key, 0) >= amount for key, amount in wanted.items())]
    if len(able) < count:
        per_node = ", ".join(f"{amount:g} {key}s" for key, amount in wanted.items())
        sizes = "; ".join(f"{r.get('CPU', 0):g} CPUs, {r.get('GPU', 0):g} GPUs" for r in alive[:8])
        raise NotEnoughResources(
            f"asked for {count} nodes with {per_node} each ({workers} workers a node); "
            f"{len(able)} of the cluster's {len(alive)} nodes are that large ({sizes}). "
            "Use fewer workers a node, or fewer CPUs or GPUs a worker."
        )


class Lease:
    """A placement group for one run: one bundle a node. ``release`` gives it back."""

    def __init__(self, scaling: PyTorchScalingConfig, local: bool) -> None:
        self._scaling = scaling
        self._local = local
        self._group: PlacementGroup | None = None

    async def acquire(self) -> list[Place]:
        """Waits for the resources; the places, node rank 0 first. Raises ``NotEnoughResources``."""
        check(self._scaling, ray.nodes(), self._local)
        wanted = bundle(self._scaling, self._local)
        strategy = "PACK" if self._local else "STRICT_SPREAD"
        self._group = placement_group([wanted] * self._scaling.num_nodes, strategy=strategy)
        await self._group.ready()
        return await self._places()

    async def _places(self) -> list[Place]:
        assert self._group is not None
        nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
        table = ray.util.placement_group_table(self._group)
        ids = [table["bundles_to_node_id"][index] for index in range(self._scaling.num_nodes)]
        gpus: list[list[str]] = [[] for _ in ids]
        if self._scaling.resource_requirements_per_worker.num_gpus:
            gpus = list(await asyncio.gather(*(self._gpu_ids(index) for index in range(len(ids)))))
        return [Place(i, nodes[i], tuple(g)) for i, g in zip(ids, gpus, strict=True)]

    def _gpu_ids(self, index: int) -> Any:
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
        count = bundle(self._scaling, self._local)["GPU"]
        task = ray.remote(_visible_gpus).options(
            num_cpus=0, num_gpus=count, max_retries=0, scheduling_strategy=strategy
        )
        return task.remote()

    def release(self) -> None:
        """Gives the resources back; harmless a second time."""
        if self._group is not None:
            group, self._group = self._group, None
            remove_placement_group(group)


def _visible_gpus() -> list[str]:
    import os

    return [part for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part]


def cpu_note(scaling: PyTorchScalingConfig, nodes: Sequence[Mapping[str, Any]]) -> str | None:
    """The line that says so when the ranks of a local run want more CPUs than there are."""
    have = sum(node["Resources"].get("CPU", 0) for node in nodes if node["Alive"])
    each = scaling.resource_requirements_per_worker.num_cpus
    wanted = each * scaling.world_size
    if wanted <= have:
        return None
    return f"{scaling.world_size} ranks × {each:g} CPUs share the {have:g} CPUs of this machine"
