"""The ``!`` and ``%`` lines of a cell, on a rank: IPython's transformer makes them calls of this object."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from string import Formatter
from types import ModuleType
from typing import Any

#: line magics that mean something on a rank; any other is refused before the run starts
LINE_MAGICS = ("env", "set_env", "cd", "pwd", "time")
#: the name that the rewritten calls use
SHELL_NAME = "__torchdist_shell__"


#: ``$name`` or ``$name.attribute``, not inside of single quotes
_DOLLAR = re.compile(r"\$(\$?)([^\W\d][\w.]*)(?=(?:[^']*'[^']*')*[^']*$)")


class ShellLines(list[str]):
    """``lines = !command``: a list, and as in IPython its text with newlines (``n``) and with blanks (``s``)."""

    @property
    def n(self) -> str:
        return "\n".join(self)

    @property
    def s(self) -> str:
        return " ".join(self)

    @property
    def l(self) -> list[str]:  # noqa: E743  IPython's name
        return self


def shell_names(text: str) -> list[str]:
    """The expressions of a shell line: what stands in braces and behind ``$``."""
    found = [match[2] for match in _DOLLAR.finditer(text) if not match[1]]
    try:
        fields = [field for _, field, _, _ in Formatter().parse(text) if field]
    except ValueError:  # braces that are the shell's own
        fields = []
    return found + fields


class CellShell:
    """Runs shell lines and the few line magics of ``LINE_MAGICS`` in the rank's own process."""

    def __init__(self, main: ModuleType) -> None:
        self._main = main

    def system(self, command: str) -> None:
        """``!command``: its output is the rank's output; a failing command does not end the run, as in a notebook."""
        code = subprocess.run(self._expand(command), shell=True, check=False).returncode  # noqa: S602  the user's line
        self._main.__dict__["_exit_code"] = code

    def getoutput(self, command: str) -> ShellLines:
        """``lines = !command``."""
        done = subprocess.run(self._expand(command), shell=True, check=False, stdout=subprocess.PIPE, text=True)  # noqa: S602
        return ShellLines(done.stdout.splitlines())

    def run_line_magic(self, name: str, line: str) -> Any:
        """``%name line``."""
        return getattr(self, f"_{name}")(self._expand(line).strip())

    def _expand(self, text: str) -> str:
        """``$name`` and ``{expression}`` of IPython; what Python does not know is the shell's, as it stands."""
        try:
            parts = []
            for literal, field, spec, conversion in Formatter().parse(text):
                parts.append(self._dollars(literal))
                if field is not None:
                    value = self._value(f"{field}:{spec}" if spec else field)
                    parts.append(str(Formatter().convert_field(value, conversion)))
            return "".join(parts)
        except Exception:
            return self._dollars(text)

    def _dollars(self, text: str) -> str:
        def one(match: re.Match[str]) -> str:
            if match[1]:  # $$ is a $ of the shell's
                return "$" + match[2]
            name = match[2].split(".")[0]
            try:
                return str(self._value(match[2])) if name in self._main.__dict__ else match[0]
            except Exception:
                return match[0]

        return _DOLLAR.sub(one, text)

    def _value(self, expression: str) -> Any:
        return eval(expression, self._main.__dict__)

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
        exec(compile(line, "<%time>", "exec"), self._main.__dict__)
        print(f"CPU time: {time.process_time() - cpu:.3g} s, wall time: {time.perf_counter() - wall:.3g} s", flush=True)
