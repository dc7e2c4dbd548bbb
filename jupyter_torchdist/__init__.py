"""Distributed PyTorch training from one notebook cell. ``%load_ext jupyter_torchdist``, then ``%%torchdist --help``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

#: public name → where it lives; nothing is imported before it is asked for
_PUBLIC = {
    "PyTorchDistributor": "driver.distributor",
    "PyTorchDistributorResult": "driver.result",
    "RunHandle": "driver.handle",
    "shutdown": "driver.cluster",
    "run": "driver.api",
    "runs": "driver.api",
    "PyTorchScalingConfig": "config",
    "WorkerResourceConfig": "config",
    "Context": "worker.context",
    "get_context": "worker.context",
    "MetricsReporter": "worker.reporter",
    "ArtifactManager": "worker.artifacts",
    "DataConnector": "data.connector",
    "ShardedDataConnector": "data.connector",
    "form": "notebook.form",
    "errors": "errors",
}
_MODULES = frozenset({"errors"})

if TYPE_CHECKING:
    from jupyter_torchdist import errors as errors
    from jupyter_torchdist.config import PyTorchScalingConfig, WorkerResourceConfig
    from jupyter_torchdist.data.connector import DataConnector, ShardedDataConnector
    from jupyter_torchdist.driver.api import run, runs
    from jupyter_torchdist.driver.cluster import shutdown
    from jupyter_torchdist.driver.distributor import PyTorchDistributor
    from jupyter_torchdist.driver.handle import RunHandle
    from jupyter_torchdist.driver.result import PyTorchDistributorResult
    from jupyter_torchdist.notebook.form import form
    from jupyter_torchdist.worker.artifacts import ArtifactManager
    from jupyter_torchdist.worker.context import Context, get_context
    from jupyter_torchdist.worker.reporter import MetricsReporter

__all__ = [
    "ArtifactManager",
    "Context",
    "DataConnector",
    "MetricsReporter",
    "PyTorchDistributor",
    "PyTorchDistributorResult",
    "PyTorchScalingConfig",
    "RunHandle",
    "ShardedDataConnector",
    "WorkerResourceConfig",
    "errors",
    "form",
    "get_context",
    "run",
    "runs",
    "shutdown",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_PUBLIC[name]}")
    value = module if name in _MODULES else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext jupyter_torchdist``: registers the magics and starts the cluster in the background."""
    from jupyter_torchdist.notebook.extension import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """``%unload_ext jupyter_torchdist``."""
    from jupyter_torchdist.notebook.extension import unload

    unload(shell)


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    return [{"src": "labextension", "dest": "jupyter-torchdist"}]


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    from jupyter_torchdist.server.app import TorchdistApp

    return [{"module": "jupyter_torchdist", "app": TorchdistApp}]
