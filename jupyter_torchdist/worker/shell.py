"""The ``!`` and ``%`` lines of a cell, on a rank: IPython's transformer makes them calls of this object."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from types import ModuleType
from typing import Any

#: line magics that mean something on a rank; any other is refused before the run starts
LINE_MAGICS = ("env", "set_env", "cd", "pwd", "time")
#: the name that the rewritten calls use
SHELL_NAME = "__torchdist_shell__"


class CellShell:
    """Runs shell lines and the few line magics of ``LINE_MAGICS`` in the rank's own process."""

    def __init__(self, main: ModuleType) -> None:
        self._main = main

    def system(self, command: str) -> None:
        """``!command``: its output is the rank's output; a failing command does not end the run, as in a notebook."""
        code = subprocess.run(self._expand(command), shell=True, check=False).returncode  # noqa: S602  the user's line
        self._main.__dict__["_exit_code"] = code

    def getoutput(self, command: str) -> list[str]:
        """``lines = !command``."""
        done = subprocess.run(self._expand(command), shell=True, check=False, stdout=subprocess.PIPE, text=True)  # noqa: S602
        return done.stdout.splitlines()

    def run_line_magic(self, name: str, line: str) -> Any:
        """``%name line``."""
        return getattr(self, f"_{name}")(self._expand(line).strip())

    def _expand(self, text: str) -> str:
        """``$name`` and ``{expression}`` of IPython, for names that the cell defines; the shell gets the rest."""
        from string import Template

        values = {k: str(v) for k, v in self._main.__dict__.items() if k.isidentifier() and not k.startswith("__")}
        return Template(text).safe_substitute({k: v for k, v in values.items() if k not in os.environ})

    def _env(self, line: str) -> Any:
        if not line:
            return dict(os.environ)
        name, separator, value = line.partition("=") if "=" in line else line.partition(" ")
        if not separator:
            return os.environ.get(name)
        os.environ[name.strip()] = value.strip()
        return None

    _set_env = _env

    def _cd(self, line: str) -> None:
        os.chdir(os.path.expanduser(" ".join(shlex.split(line)) or "~"))

    def _pwd(self, line: str) -> str:
        return os.getcwd()

    def _time(self, line: str) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        exec(compile(line, "<%time>", "exec"), self._main.__dict__)  # noqa: S102  the user's own line
        print(  # noqa: T201  what %time is for
            f"CPU time: {time.process_time() - cpu:.3g} s, wall time: {time.perf_counter() - wall:.3g} s", flush=True
        )
