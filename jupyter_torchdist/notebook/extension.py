"""``%load_ext jupyter_torchdist``."""

from __future__ import annotations

import ast
from typing import Any

from IPython.core.inputtransformer2 import make_tokens_by_line

from jupyter_torchdist.driver import cluster, host
from jupyter_torchdist.notebook.magics import TorchdistMagics
from jupyter_torchdist.notebook.view import show

_MAGIC = "%%torchdist"


def load(shell: Any) -> None:
    """Registers the magics, shows runs in this shell, and starts the cluster in the background."""
    shell.register_magics(TorchdistMagics)
    if show not in host.display_hooks:
        host.display_hooks.append(show)
    if first_line not in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.append(first_line)
    cluster.begin()


def unload(shell: Any) -> None:
    """Takes back what ``load`` did, and ends the cluster."""
    for kind in ("cell", "line"):
        shell.magics_manager.magics[kind].pop("torchdist", None)
    if show in host.display_hooks:
        host.display_hooks.remove(show)
    if first_line in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.remove(first_line)
    cluster.shutdown()


def first_line(lines: list[str]) -> list[str]:
    """An input transformer: IPython takes a cell magic below a comment for a line magic, and says so in riddles."""
    found = next((i for i, line in enumerate(lines) if line.startswith(_MAGIC)), None)
    if found is None:
        return lines
    if any(line.strip() for line in lines[:found]) and not lines[0].startswith("%%"):
        if _in_a_string(lines, found):
            return lines
        message = (
            f"{_MAGIC} must be the first line of its cell; move what stands above it into the body or another cell."
        )
        return [f"raise __import__('IPython.core.error', fromlist=['x']).UsageError({message!r})\n"]
    return lines[found:]


def _in_a_string(lines: list[str], number: int) -> bool:
    """Whether a token that began in a line above reaches over the line."""
    try:
        ast.parse("".join(lines))
    except (SyntaxError, ValueError):
        tokens = (token for line in make_tokens_by_line(lines) for token in line)
        return any(token.start[0] <= number < token.end[0] for token in tokens)
    return True  # a line that begins with %% is Python inside of a string only
