"""Hugging Face accelerate on a rank without a GPU: it joins the run's world, where it would otherwise train N copies.

Without ``cpu=True`` its ``PartialState``, which the HF Trainer makes too, takes such a rank for a single process.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_STATE = "accelerate.state"


class _Finder(MetaPathFinder):
    """Changes the module once, right after it was imported; accelerate itself is not imported for that."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _STATE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _use_cpu(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _use_cpu(module: Any) -> None:
    original = module.PartialState.__init__

    def init(self: Any, cpu: bool = True, **options: Any) -> None:
        original(self, True, **options)

    module.PartialState.__init__ = init


def prepare() -> None:
    """For a rank without a GPU, before anything of the user's is loaded."""
    sys.meta_path.insert(0, _Finder())
