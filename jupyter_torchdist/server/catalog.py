"""What the server knows of runs: read from their folders, always below the server's root."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jupyter_torchdist.errors import ConfigError
from jupyter_torchdist.run_folder import contained, run_folders

MAX_LIMIT = 500
_FIELDS = ("name", "state", "started", "duration", "reports")


class NoSuchStage(ConfigError):
    """The stage is not below the server's root, or is not there."""


def list_runs(root: Path, stage: str, limit: int, offset: int) -> dict[str, Any]:
    """The runs of a stage, newest first. Raises ``NoSuchStage``."""
    try:
        folder = contained(root, stage)
    except (ConfigError, OSError, ValueError) as exc:
        raise NoSuchStage(f"{stage!r} is not a stage below the server's folder.") from exc
    rows = []
    folders = run_folders(folder)
    for run in folders[offset : offset + limit]:
        record = run.read_run()
        row = {key: record.get(key) for key in _FIELDS}
        path = run.path.relative_to(root.resolve()).as_posix()
        rows.append({"run_id": run.run_id, "path": path, **row})
    return {"stage": stage, "total": len(folders), "runs": rows}
