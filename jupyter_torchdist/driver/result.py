"""What a finished run leaves in the notebook."""

from __future__ import annotations

import html
import io
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_torchdist.errors import ResultError
from jupyter_torchdist.records import Artifact, RankValue, RunStatus
from jupyter_torchdist.run_folder import RunFolder
from jupyter_torchdist.stage import checkpoints

if TYPE_CHECKING:
    import pandas as pd


class PyTorchDistributorResult:
    """The result of a run. Everything but the return values is read from the run folder when it is asked for."""

    def __init__(self, folder: RunFolder, status: RunStatus, values: list[RankValue]) -> None:
        self._folder = folder
        self._status = status
        self._pickled = {value.rank: value for value in values}

    @property
    def run_id(self) -> str:
        """The run's id, also the name of its folder."""
        return self._folder.run_id

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self._folder.path

    @property
    def state(self) -> str:
        """``finished``."""
        return str(self._status.state)

    @property
    def duration(self) -> float:
        """Seconds from the call to the end."""
        return self._status.elapsed

    @property
    def world(self) -> dict[str, int]:
        """Nodes, workers per node, GPUs per worker, world size."""
        status = self._status
        return {
            "nodes": status.nodes,
            "workers": status.workers,
            "gpus": status.gpus,
            "world_size": status.nodes * status.workers,
        }

    @property
    def value(self) -> Any:
        """What rank 0's train function returned. Raises ``ResultError`` when it could not be brought here."""
        return self._load(0)

    @property
    def values(self) -> dict[int, Any]:
        """The return values by rank."""
        return {rank: self._load(rank) for rank in sorted(self._pickled)}

    def _load(self, rank: int) -> Any:
        found = self._pickled.get(rank)
        if found is None:
            return None
        if found.problem:
            raise ResultError(found.problem)
        if found.data is None:
            return None
        try:
            return pickle.load(io.BytesIO(found.data))
        except Exception as exc:
            raise ResultError(
                f"the return value of rank {rank} can not be loaded here ({type(exc).__name__}: {exc}). "
                "Return CPU tensors or plain data, or save it to get_model_dir()."
            ) from exc

    def get_metrics(self) -> pd.DataFrame:
        """One row per report of rank 0: ``step`` (int64), ``time``, a column a metric; NaN where one was missing."""
        return metrics_frame(self._folder)

    def last(self) -> dict[str, Any]:
        """The last reported value of each metric of rank 0."""
        last: dict[str, Any] = {}
        for report in self._folder.reports():
            if report.rank == 0:
                last.update(report.metrics)
        return last

    def get_model_dir(self) -> Path:
        """Where the files are that the ranks wrote to ``get_model_dir()``."""
        return self._folder.model_dir

    def get_checkpoint_location(self) -> Path | None:
        """The newest complete checkpoint, or None."""
        found = checkpoints.latest(checkpoints.published(self._folder.checkpoints_dir))
        return found.path if found else None

    @property
    def artifacts(self) -> list[Artifact]:
        """The files of the model folder and the checkpoints, with their sizes in bytes."""
        return self._folder.artifacts()

    def logs(self, rank: int = 0) -> str:
        """The whole output of a rank."""
        return self._folder.read_log(rank)

    def plot(self) -> Any:
        """The metrics of rank 0 as a plotly figure, one chart each."""
        import plotly.graph_objects as go

        from jupyter_torchdist.driver.plot import figure, table_of

        return go.Figure(figure(table_of(self._folder)))

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> list[str]:
        world = self.world
        ranks = f"{world['nodes']} × {world['workers']} = {world['world_size']} ranks"
        lines = [f"PyTorchDistributorResult {self.run_id}: {self.state} in {self.duration:.2f} s, {ranks}"]
        last = self.last()
        if last:
            lines.append("  " + ", ".join(f"{key} {_short(value)}" for key, value in list(last.items())[:12]))
        lines.append(f"  {self._folder.path}")
        return lines

    def _repr_html_(self) -> str:
        head, *rest = self._lines()
        body = "<br>".join(html.escape(line.strip()) for line in rest)
        return f"<div><b>{html.escape(head)}</b><br>{body}</div>"


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def metrics_frame(folder: RunFolder, rank: int = 0) -> pd.DataFrame:
    """The reports of one rank as a frame."""
    import pandas as pd

    rows = [report for report in folder.reports() if report.rank == rank]
    keys = list(dict.fromkeys(key for report in rows for key in report.metrics))
    columns: dict[str, Any] = {
        "step": pd.array([r.step for r in rows], dtype="int64"),
        "time": pd.to_datetime([r.time for r in rows], unit="s", utc=True),
    }
    for key in keys:
        column = [r.metrics.get(key) for r in rows]
        name = key if key not in columns else f"{key}_"
        columns[name] = _typed(column)
    return pd.DataFrame(columns)


def _typed(column: list[Any]) -> Any:
    import pandas as pd

    kinds = {type(v) for v in column}
    if list in kinds:
        return pd.Series(column, dtype="object")
    if kinds == {bool}:
        return pd.Series(column, dtype="bool")
    if kinds == {int} and all(-(2**63) <= v < 2**63 for v in column):
        return pd.Series(column, dtype="int64")
    return pd.Series([float("nan") if v is None else float(v) for v in column], dtype="float64")
