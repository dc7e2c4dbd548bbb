"""The older names of the public reference, and its own import paths."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from jupyter_torchdist.config import PyTorchScalingConfig, WorkerResourceConfig
from jupyter_torchdist.data.connector import DataConnector, ShardedDataConnector
from jupyter_torchdist.driver.distributor import PyTorchDistributor
from jupyter_torchdist.worker.context import Context, get_context

PyTorchTrainer = PyTorchDistributor
ScalingConfig = PyTorchScalingConfig
getContext = get_context

_RUN: dict[str, object] = {
    "PyTorchDistributor": PyTorchDistributor,
    "PyTorchTrainer": PyTorchTrainer,
    "PyTorchScalingConfig": PyTorchScalingConfig,
    "ScalingConfig": ScalingConfig,
    "WorkerResourceConfig": WorkerResourceConfig,
    "Context": Context,
    "get_context": get_context,
    "getContext": getContext,
}
_DATA: dict[str, object] = {"DataConnector": DataConnector, "ShardedDataConnector": ShardedDataConnector}
_DISTRIBUTORS = "snowflake.ml.modeling.distributors.pytorch"
#: the reference spreads its names over modules, and moved some of them once: each module answers for all
_PATHS = {
    **dict.fromkeys(
        (_DISTRIBUTORS, *(f"{_DISTRIBUTORS}.{name}" for name in ("pytorch_trainer", "scaling_config", "context"))), _RUN
    ),
    **dict.fromkeys((f"snowflake.ml.data{name}" for name in ("", ".data_connector", ".sharded_data_connector")), _DATA),
}


def install_snowflake_names() -> None:
    """Makes the reference's import paths work where its package is not installed; harmless where it is."""
    if "snowflake.ml" not in sys.modules and _installed("snowflake"):
        return
    for path, names in _PATHS.items():
        parts = path.split(".")
        for depth in range(1, len(parts) + 1):
            module = _module(".".join(parts[:depth]))
        module.__dict__.update(names)


def _installed(name: str) -> bool:
    return name not in sys.modules and importlib.util.find_spec(name) is not None


def _module(name: str) -> ModuleType:
    found = sys.modules.get(name)
    if found is None:
        found = sys.modules[name] = ModuleType(name)
        found.__path__ = []
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, found)
    return found
