"""The context of a rank: the ``Context`` protocol, the class that implements it, and ``get_context``."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from jupyter_torchdist.errors import TorchdistError
from jupyter_torchdist.records import RankSpec

if TYPE_CHECKING:
    import torch

    from jupyter_torchdist.worker.artifacts import ArtifactManager
    from jupyter_torchdist.worker.reporter import MetricsReporter


@runtime_checkable
class Context(Protocol):
    """What a train function may ask of its run; ``get_context()`` returns one. Names as in the public reference."""

    def get_rank(self) -> int:
        """0 … world size - 1."""
        ...

    def get_world_rank(self) -> int:
        """The same as ``get_rank``."""
        ...

    def get_local_rank(self) -> int:
        """0 … local world size - 1, within the node."""
        ...

    def get_local_world_size(self) -> int:
        """Ranks on this node."""
        ...

    def get_node_rank(self) -> int:
        """0 … node count - 1."""
        ...

    def get_world_size(self) -> int:
        """Ranks in all."""
        ...

    def get_master_addr(self) -> str:
        """Address of rank 0's node, routable from every node of the run."""
        ...

    def get_master_port(self) -> int:
        """Port of the rendezvous store there."""
        ...

    def get_default_backend(self) -> str:
        """``nccl`` when every rank has a GPU, else ``gloo``."""
        ...

    def get_supported_backends(self) -> list[str]:
        """Backends that this torch has and this rank can use, the default first."""
        ...

    def get_hyper_params(self) -> Any:
        """The hyper-parameters as they were passed, or None."""
        ...

    def get_dataset_map(self) -> Mapping[str, Any] | None:
        """The data as it was passed, or None."""
        ...

    def get_model_dir(self) -> str:
        """A folder that exists and is kept after the run, whatever its end; the same on all ranks of a node."""
        ...

    def get_metrics_reporter(self) -> MetricsReporter:
        """Where metrics go."""
        ...

    def get_artifact_manager(self) -> ArtifactManager:
        """Publishes files and checkpoints. Always there: every run has a stage."""
        ...

    def get_node_count(self) -> int:
        """Nodes of the run."""
        ...

    def get_run_id(self) -> str:
        """The id of the run, also the name of its folder."""
        ...

    def get_restart_count(self) -> int:
        """How often the world was started again."""
        ...

    def get_device(self) -> torch.device:
        """``cuda:{local_rank}``, or ``cpu`` for a rank without a GPU."""
        ...

    def get_devices(self) -> list[torch.device]:
        """All devices that this rank owns; the first is ``get_device()``."""
        ...

    def should_stop(self) -> bool:
        """True once a stop was asked for; costs one read of shared memory."""
        ...


class RankContext:
    """The ``Context`` of one rank, made from its ``RankSpec``."""

    def __init__(
        self,
        spec: RankSpec,
        *,
        reporter: MetricsReporter,
        artifacts: ArtifactManager,
        hyper_params: Any,
        dataset_map: Mapping[str, Any] | None,
    ) -> None:
        self._spec = spec
        self._reporter = reporter
        self._artifacts = artifacts
        self._hyper_params = hyper_params
        self._dataset_map = dataset_map
        self._control = mmap.mmap(os.dup(spec.control_fd), 1, prot=mmap.PROT_READ) if spec.control_fd >= 0 else None

    def __repr__(self) -> str:
        spec = self._spec
        return f"<Context rank {spec.rank} of {spec.world_size}, node {spec.node_rank}, run {spec.run_id}>"

    def get_rank(self) -> int:
        return self._spec.rank

    def get_world_rank(self) -> int:
        return self._spec.rank

    def get_local_rank(self) -> int:
        return self._spec.local_rank

    def get_local_world_size(self) -> int:
        return self._spec.local_world_size

    def get_node_rank(self) -> int:
        return self._spec.node_rank

    def get_node_count(self) -> int:
        return self._spec.node_count

    def get_world_size(self) -> int:
        return self._spec.world_size

    def get_master_addr(self) -> str:
        return self._spec.master_addr

    def get_master_port(self) -> int:
        return self._spec.master_port

    def get_default_backend(self) -> str:
        return self._spec.backend

    def get_supported_backends(self) -> list[str]:
        import torch.distributed as dist

        able = [name for name in ("nccl", "gloo", "mpi", "ucc") if dist.is_backend_available(name)]
        if not self._spec.num_gpus:
            able = [name for name in able if name != "nccl"]
        default = self.get_default_backend()
        return [default, *(name for name in able if name != default)]

    def get_hyper_params(self) -> Any:
        return self._hyper_params

    def get_dataset_map(self) -> Mapping[str, Any] | None:
        return self._dataset_map

    def get_model_dir(self) -> str:
        return self._spec.model_dir

    def get_metrics_reporter(self) -> MetricsReporter:
        return self._reporter

    def get_artifact_manager(self) -> ArtifactManager:
        return self._artifacts

    def get_run_id(self) -> str:
        return self._spec.run_id

    def get_restart_count(self) -> int:
        return self._spec.restart_count

    def get_device(self) -> torch.device:
        return self.get_devices()[0]

    def get_devices(self) -> list[torch.device]:
        import torch

        spec = self._spec
        if not spec.num_gpus:
            return [torch.device("cpu")]
        # index local_rank is the rank's own; its further GPUs follow those of all ranks
        own = [spec.local_rank] + [
            spec.local_world_size + spec.local_rank * (spec.num_gpus - 1) + i for i in range(spec.num_gpus - 1)
        ]
        return [torch.device("cuda", index) for index in own]

    def should_stop(self) -> bool:
        return self._control is not None and self._control[0] != 0


_current: RankContext | None = None
_HINT = "Pass the function to PyTorchDistributor(...).run(), or write the body in a %%torchdist cell."


def set_context(context: RankContext | None) -> None:
    """Makes ``context`` the one of this process; only the rank's start calls it."""
    global _current
    _current = context


def get_context() -> Context:
    """The context of the run that this process is a rank of. Raises ``RuntimeError`` outside a run."""
    if _current is None:
        raise TorchdistError(f"get_context() works inside a run only, and this process is no rank. {_HINT}")
    return _current


def report(metrics: Mapping[str, Any] | None = None, /, **more: Any) -> None:
    """``report(loss=0.3)`` or ``report({"loss": 0.3})``: ``get_context().get_metrics_reporter().log_metrics(…)``."""
    given: Any = more if metrics is None else metrics
    if more and isinstance(metrics, Mapping):
        given = {**metrics, **more}
    # what is no dict is refused by the reporter, in its own words
    get_context().get_metrics_reporter().log_metrics(given)
