"""What the driver finds out about the process that it is in: folders, variables, versions."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from jupyter_torchdist.config import RANK_VARIABLES

#: set by a kernel, a terminal or Ray for themselves
_PRIVATE = ("MPLBACKEND", "JPY_", "RAY_", "PYDEVD_", "TERM", "CLICOLOR", "FORCE_COLOR", "PAGER", "GIT_PAGER",
            "COLUMNS", "LINES", "_", "TORCHELASTIC_", "OLDPWD", "PWD", "SHLVL", "TORCHDIST_", "KMP_DUPLICATE_LIB_OK",
            "KMP_INIT_AT_FORK", "IPYTHON", "PYTHONBREAKPOINT")  # fmt: skip
#: the notebook layer puts what shows a run here: (handle, verbose) → None
display_hooks: list[Callable[[Any, int], None]] = []


def started_environment() -> dict[str, str]:
    """The variables that this process was started with."""
    try:
        raw = Path("/proc/self/environ").read_bytes()
    except OSError:
        return {}
    rows = (row.partition(b"=") for row in raw.split(b"\0") if b"=" in row)
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in rows}


def changed_environment() -> dict[str, str | None]:
    """What the notebook set, changed or removed (None) since it was started; a rank's own variables never travel."""
    before, now = started_environment(), dict(os.environ)
    changed: dict[str, str | None] = {k: v for k, v in now.items() if before.get(k) != v}
    changed.update({k: None for k in before if k not in now})
    return {k: v for k, v in changed.items() if k not in RANK_VARIABLES and not _private(k)}


def _private(name: str) -> bool:
    return any(name == p or (p.endswith("_") and p != "_" and name.startswith(p)) for p in _PRIVATE)


def working_folder() -> str:
    """The kernel's current folder. Raises ``FileNotFoundError`` when it was removed."""
    return os.getcwd()


_start_folder = os.getcwd() if os.path.isdir(".") else "/"


def notebook_folder() -> Path:
    """The folder of the notebook: where the kernel was started, whatever ``os.chdir`` has done since."""
    session = os.environ.get("JPY_SESSION_NAME", "")
    if session.endswith(".ipynb") and Path(session).is_absolute() and Path(session).parent.is_dir():
        return Path(session).parent
    return Path(_start_folder)


def search_path() -> tuple[str, ...]:
    """``sys.path`` for the ranks: this process's, with relative entries made absolute, and the notebook's folder."""
    entries = [os.path.abspath(entry) if entry else os.getcwd() for entry in sys.path]
    return tuple(dict.fromkeys([*entries, str(notebook_folder())]))


def versions() -> dict[str, str]:
    """Versions of Python and of what matters for a run; nothing is imported."""
    found = {"python": platform.python_version()}
    for name in ("jupyter-torchdist", "torch", "ray", "cloudpickle", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
