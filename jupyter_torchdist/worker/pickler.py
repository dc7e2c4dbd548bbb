"""The pickler of both directions: what goes to the ranks and what they return."""

from __future__ import annotations

import io
import pickle
import sys
from typing import Any

import cloudpickle


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle, which would silently make an open file a copy of its text in memory."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, io.TextIOWrapper) and obj not in (sys.stdout, sys.stderr):
            raise pickle.PicklingError(f"cannot pickle the open file {obj.name!r}")
        return super().reducer_override(obj)
