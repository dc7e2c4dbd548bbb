"""What a forkserver imports once for all the ranks that it will fork."""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from typing import Any

#: imported where installed: what nearly every train function imports, and what this package needs in a rank
_MODULES = (
    "torch", "torch.distributed", "torch.nn.parallel", "torch.utils.data", "torch.optim", "numpy", "cloudpickle",
    "threadpoolctl", "asyncio", "inspect", "jupyter_torchdist.worker.rank", "jupyter_torchdist.worker.process_group",
    "jupyter_torchdist.worker.artifacts",
)  # fmt: skip

_pools: Any = None


def preload() -> list[str]:
    """Imports; returns what could not be imported, as text. Threads that an import starts are told by ``may_fork``."""
    global _pools
    problems = []
    for name in _MODULES:
        try:
            importlib.import_module(name)
        except Exception as exc:
            problems.append(f"{name}: {type(exc).__name__}: {exc}")
    with contextlib.suppress(ImportError):
        from threadpoolctl import ThreadpoolController

        _pools = ThreadpoolController()
    return problems


def may_fork() -> bool:
    """A process forks safely only while it has one thread and has not touched CUDA."""
    import torch

    tasks = len(os.listdir("/proc/self/task"))
    return tasks == 1 and threading.active_count() == 1 and not bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def set_threads(n: int) -> None:
    """Sets the intra-op threads of torch and of every loaded BLAS and OpenMP pool."""
    import torch

    torch.set_num_threads(n)
    if _pools is not None:
        _pools.limit(limits=n)
