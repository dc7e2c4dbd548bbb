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

_PATHS: dict[str, dict[str, object]] = {
    "snowflake.ml.modeling.distributors.pytorch": {
        "PyTorchDistributor": PyTorchDistributor,
        "PyTorchTrainer": PyTorchDistributor,
        "PyTorchScalingConfig": PyTorchScalingConfig,
        "ScalingConfig": PyTorchScalingConfig,
        "WorkerResourceConfig": WorkerResourceConfig,
        "Context": Context,
        "get_context": get_context,
        "getContext": get_context,
    },
    "snowflake.ml.modeling.distributors.pytorch.pytorch_trainer": {
        "PyTorchDistributor": PyTorchDistributor,
        "PyTorchTrainer": PyTorchDistributor,
        "PyTorchScalingConfig": PyTorchScalingConfig,
    },
    "snowflake.ml.modeling.distributors.pytorch.scaling_config": {
        "PyTorchScalingConfig": PyTorchScalingConfig,
        "ScalingConfig": PyTorchScalingConfig,
        "WorkerResourceConfig": WorkerResourceConfig,
    },
    "snowflake.ml.modeling.distributors.pytorch.context": {"Context": Context, "get_context": get_context},
    "snowflake.ml.data.data_connector": {"DataConnector": DataConnector},
    "snowflake.ml.data.sharded_data_connector": {"ShardedDataConnector": ShardedDataConnector},
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
