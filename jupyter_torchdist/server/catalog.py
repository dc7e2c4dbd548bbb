"""What the server knows of runs: read from their folders, always below the server's root."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from jupyter_torchdist.errors import ConfigError
from jupyter_torchdist.run_folder import RunFolder, contained, run_folders

MAX_LIMIT = 500
MAX_OFFSET = 10_000_000
_FIELDS = ("name", "state", "started", "duration", "reports")


class NoSuchStageError(ConfigError):
    """The stage is not below the server's root."""


class BadNumberError(ConfigError):
    """A number of the query is none, or out of its bounds."""


@dataclass(frozen=True)
class RunsQuery:
    """What a client asks for: ``limit`` runs after the first ``offset`` of ``stage``, relative to the server's root."""

    stage: str = "stage"
    limit: int = 100
    offset: int = 0

    @classmethod
    def parse(cls, arguments: Mapping[str, str]) -> Self:
        """From the texts of a URL; others than the three are left alone. Raises ``BadNumberError``."""
        return cls(
            stage=arguments.get("stage", cls.stage),
            limit=_whole_number("limit", arguments.get("limit", str(cls.limit)), 1, MAX_LIMIT),
            offset=_whole_number("offset", arguments.get("offset", str(cls.offset)), 0, MAX_OFFSET),
        )


def list_runs(root: Path, query: RunsQuery) -> dict[str, Any]:
    """Read the runs of a stage, newest first; none where the stage is not there yet. Raises ``NoSuchStageError``."""
    folder = _below(root, query.stage)
    if folder is None:
        raise NoSuchStageError(f"{query.stage!r} is not a stage below the server's folder; give a path relative to it.")
    folders = run_folders(folder)
    shown = folders[query.offset : query.offset + query.limit]
    return {"stage": query.stage, "total": len(folders), "runs": [_row(root.resolve(), run) for run in shown]}


def _row(root: Path, run: RunFolder) -> dict[str, Any]:
    path = run.path.relative_to(root).as_posix()
    # a run.json that is a link out of the root is not followed
    record = run.read_run() if _below(root, f"{path}/{run.run_json.name}") else {}
    return {"run_id": run.run_id, "path": path, **{key: record.get(key) for key in _FIELDS}}


def _below(root: Path, relative: str) -> Path | None:
    try:
        return contained(root, relative)
    except (OSError, RuntimeError, ValueError):
        # contained's own refusal, a name too long, or a circle of links, which is a RuntimeError before Python 3.13
        return None


def _whole_number(name: str, text: str, least: int, most: int) -> int:
    # the length first: int() refuses texts of thousands of digits in its own way
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(most)) or not least <= int(text) <= most:
        raise BadNumberError(f"{name} is {text[:20]!r}; it must be a whole number from {least} to {most}.")
    return int(text)
