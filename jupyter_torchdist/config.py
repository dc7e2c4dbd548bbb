"""What a user configures: the world, what a rank gets, and settings of the installation."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from jupyter_torchdist.errors import ConfigError

BACKENDS = ("auto", "gloo", "nccl", "mpi", "ucc")
#: Variables that make a rank a rank: the launcher alone sets them.
RANK_VARIABLES = frozenset(
    {
        "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR",
        "MASTER_PORT", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "CUDA_VISIBLE_DEVICES",
    }
)  # fmt: skip


def _whole(owner: str, name: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{owner}.{name} is {value!r}; it must be a whole number of at least {least}.")
    if value < least:
        raise ConfigError(f"{owner}.{name} is {value}; it must be at least {least}.")
    return value


@dataclass(frozen=True)
class WorkerResourceConfig:
    """What one worker reserves.

    ``num_cpus``: CPU cores, a number >= 0 (fractions allowed). ``num_gpus``: whole GPUs >= 0; a rank owns its GPUs.
    Raises ``ConfigError`` (a ValueError) that names the field and the value.
    """

    num_cpus: float = 1
    num_gpus: int = 0

    def __post_init__(self) -> None:
        cpus = self.num_cpus
        if isinstance(cpus, bool) or not isinstance(cpus, (int, float)) or not math.isfinite(cpus) or cpus < 0:
            raise ConfigError(f"WorkerResourceConfig.num_cpus is {cpus!r}; it must be a number of at least 0.")
        _whole("WorkerResourceConfig", "num_gpus", self.num_gpus, 0)


@dataclass(frozen=True)
class PyTorchScalingConfig:
    """The world: ``num_nodes`` nodes with ``num_workers_per_node`` workers each, both whole numbers >= 1.

    Example: ``PyTorchScalingConfig(2, 4, WorkerResourceConfig(num_gpus=1))`` is 8 ranks with a GPU each.
    """

    num_nodes: int
    num_workers_per_node: int
    resource_requirements_per_worker: WorkerResourceConfig = field(default_factory=WorkerResourceConfig)

    def __post_init__(self) -> None:
        _whole("PyTorchScalingConfig", "num_nodes", self.num_nodes, 1)
        _whole("PyTorchScalingConfig", "num_workers_per_node", self.num_workers_per_node, 1)
        if not isinstance(self.resource_requirements_per_worker, WorkerResourceConfig):
            raise ConfigError(
                "PyTorchScalingConfig.resource_requirements_per_worker is "
                f"{self.resource_requirements_per_worker!r}; it must be a WorkerResourceConfig."
            )

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.num_nodes * self.num_workers_per_node


@dataclass(frozen=True)
class RunOptions:
    """The keyword arguments of a run beside the world, checked. All times are in seconds."""

    name: str | None = None
    backend: str = "auto"
    init_process_group: bool = True
    timeout: float | None = None
    grace: float = 10.0
    stall_after: float = 600.0
    straggler_grace: float = 30.0
    rendezvous_timeout: float = 60.0
    env: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    display: Literal["auto", "none"] = "auto"
    verbose: int = 1

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ConfigError(f"backend is {self.backend!r}; it must be one of {', '.join(BACKENDS)}.")
        if self.name is not None:
            check_name(self.name)
        if self.timeout is not None:
            check_seconds("timeout", self.timeout)
        for name in ("straggler_grace", "rendezvous_timeout"):
            check_seconds(name, getattr(self, name))
        for name in ("grace", "stall_after"):
            check_seconds(name, getattr(self, name), zero=True)
        if self.display not in ("auto", "none"):
            raise ConfigError(f"display is {self.display!r}; it must be 'auto' or 'none'.")
        if self.verbose not in (0, 1, 2):
            raise ConfigError(f"verbose is {self.verbose!r}; it must be 0, 1 or 2.")
        check_env(self.env)
        for tag in self.tags:
            if not isinstance(tag, str) or _encodable(tag) != tag:
                raise ConfigError(f"tags has {tag!r}; a tag is a string without half of a surrogate pair.")


def check_name(name: object) -> None:
    """A run's name becomes part of a folder's name: letters, digits, ``.``, ``_``, ``-`` and blanks, at most 80."""
    if not isinstance(name, str) or not re.fullmatch(r"[\w.\- ]{1,80}", name) or name.strip(". ") != name:
        raise ConfigError(
            f"name is {name!r}; it must be 1 to 80 letters, digits, '.', '_', '-' or blanks, "
            "and neither begin nor end with a dot or a blank."
        )


def check_seconds(what: str, value: object, zero: bool = False) -> None:
    """``zero``: 0 is allowed."""
    number = not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(value)
    if not number or value < 0 or (value == 0 and not zero):  # type: ignore[operator]
        least = "of at least" if zero else "above"
        raise ConfigError(f"{what} is {value!r}; it must be a number of seconds {least} 0.")


def check_env(env: object) -> None:
    if not isinstance(env, Mapping):
        raise ConfigError(f"env is {env!r}; it must be a dict of variable names to strings.")
    for key, value in env.items():
        if not isinstance(key, str) or not key or "=" in key or "\0" in key:
            raise ConfigError(f"env has the name {key!r}; a variable's name is a string without '=' in it.")
        if _encodable(key + str(value)) != key + str(value):
            raise ConfigError(f"env[{key!r}] is {value!r}; half of a surrogate pair is no text, remove it.")
        if not isinstance(value, str) or "\0" in value:
            raise ConfigError(f"env[{key!r}] is {value!r}; it must be a string. Write str(...) around a number.")
        if key in RANK_VARIABLES or key.startswith("TORCHELASTIC_"):
            raise ConfigError(f"env[{key!r}] can not be set: each rank gets its own {key} from the launcher.")


_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(s|m|h|d)?", re.ASCII)
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_seconds(text: str) -> float:
    """``90``, ``90s``, ``1.5h``, ``10m``, ``2d`` → seconds. Raises ``ConfigError``."""
    match = _DURATION.fullmatch(text.strip())
    if not match:
        raise ConfigError(f"{text!r} is not a time; write seconds or 90s, 10m, 1.5h, 2d.")
    return float(match[1]) * _SECONDS[match[2] or "s"]


def setting(name: str, default: str) -> str:
    """A setting of the installation: the environment variable ``TORCHDIST_<name>``, else the default."""
    return os.environ.get(f"TORCHDIST_{name}", default)


def _encodable(text: str) -> str:
    """``text`` with its lone surrogates escaped, which UTF-8 does not have."""
    return text.encode("utf-8", "backslashreplace").decode()


def jsonable(value: Any, depth: int = 0) -> Any:
    """``value`` as it can stand in ``run.json``: JSON types stay, anything else becomes a short text."""
    if isinstance(value, str):
        return _encodable(value[:2000])
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**64 else str(value) if abs(value) < 10**4000 else "a huge number"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth < 4 and isinstance(value, Mapping):
        return {_encodable(str(k)): jsonable(v, depth + 1) for k, v in list(value.items())[:200]}
    if depth < 4 and isinstance(value, (list, tuple)):
        return [jsonable(v, depth + 1) for v in value[:200]]
    try:
        return _encodable(f"{type(value).__name__}: {value!r}"[:200])
    except Exception:
        return type(value).__name__
