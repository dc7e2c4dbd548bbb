"""``run`` and ``runs``: the functional way in."""

from __future__ import annotations

import html
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from jupyter_torchdist.config import PyTorchScalingConfig
from jupyter_torchdist.driver import host
from jupyter_torchdist.driver.distributor import PyTorchDistributor
from jupyter_torchdist.driver.handle import RunHandle, handles
from jupyter_torchdist.driver.result import PyTorchDistributorResult
from jupyter_torchdist.records import RunState, RunStatus
from jupyter_torchdist.run_folder import RunFolder, find_run, run_folders
from jupyter_torchdist.stage.location import resolve_stage


def run(
    train_func: Any, scaling_config: PyTorchScalingConfig | None = None, **options: Any
) -> PyTorchDistributorResult:
    """``PyTorchDistributor(train_func, scaling_config).run(**options)``."""
    return PyTorchDistributor(train_func, scaling_config).run(**options)


class RunList:
    """The runs of a stage, newest first; shows itself as a table."""

    _COLUMNS = ("run", "name", "state", "started", "seconds", "reports")

    def __init__(self, stage: str, folders: list[RunFolder]) -> None:
        self.stage = stage
        self._folders = folders

    def __len__(self) -> int:
        return len(self._folders)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for folder in self._folders:
            record = folder.read_run()
            started = record.get("started")
            yield {
                "run": folder.run_id,
                "name": record.get("name") or "",
                "state": record.get("state", "?"),
                "started": datetime.fromtimestamp(started).strftime("%Y-%m-%d %H:%M:%S") if started else "",
                "seconds": record.get("duration"),
                "reports": record.get("reports", 0),
            }

    def __getitem__(self, index: int) -> PyTorchDistributorResult:
        return _result(self._folders[index])

    def __repr__(self) -> str:
        rows = [self._COLUMNS, *([str(row[c]) for c in self._COLUMNS] for row in self)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(self._COLUMNS))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join(lines) if len(self) else f"no runs in {self.stage}"

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{c}</th>" for c in self._COLUMNS)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(str(row[c]))}</td>" for c in self._COLUMNS) + "</tr>" for row in self
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def runs(stage: str | None = None) -> RunList:
    """The runs of a stage (None: the default one), newest first."""
    place = resolve_stage(stage, host.notebook_folder())
    return RunList(str(place), run_folders(place))


def finished(word: str, stage: str | None = None) -> PyTorchDistributorResult:
    """A run of a stage by id, prefix, name or ``last``. Raises ``ConfigError``."""
    return _result(find_run(resolve_stage(stage, host.notebook_folder()), word))


def _result(folder: RunFolder) -> PyTorchDistributorResult:
    record = folder.read_run()
    world = record.get("world", {})
    state = record.get("state", "lost")
    status = RunStatus(
        state=RunState(state) if state in set(RunState) else RunState.LOST,
        name=record.get("name"),
        nodes=world.get("nodes", 1),
        workers=world.get("workers_per_node", 1),
        gpus=world.get("gpus_per_worker", 0),
        elapsed=record.get("duration") or 0.0,
        reports=record.get("reports", 0),
        folder=str(folder.path),
    )
    return PyTorchDistributorResult(folder, status, [])


def live_runs() -> list[RunHandle]:
    """The runs of this process that have not ended, oldest first."""
    return [handle for handle in handles() if not handle.status.state.final]
