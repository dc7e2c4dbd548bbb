"""The chart of a run as plotly JSON, for saved outputs and for frontends without the labextension."""

from __future__ import annotations

import base64
import math
from array import array
from typing import Any

from jupyter_torchdist.driver.series import Series, SeriesTable
from jupyter_torchdist.run_folder import RunFolder

_COLUMNS = 2
_ROW_PIXELS = 240
_GAP = 0.12


def table_of(folder: RunFolder) -> SeriesTable:
    """The series of a run on disk."""
    table = SeriesTable()
    for report in folder.reports():
        if report.rank == 0:
            table.add(report)
    return table


def figure(table: SeriesTable) -> dict[str, Any]:
    """``{"data", "layout"}``: one chart a metric, at most two a row; numbers as base64 of float32 or float64."""
    groups: dict[str, list[Series]] = {}
    for series in table:
        groups.setdefault(series.key.split("[")[0] if series.key.endswith("]") else series.key, []).append(series)
    columns = min(_COLUMNS, len(groups)) or 1
    rows = math.ceil(len(groups) / columns) or 1
    data: list[dict[str, Any]] = []
    layout: dict[str, Any] = {
        "height": rows * _ROW_PIXELS + 40,
        "margin": {"l": 50, "r": 20, "t": 30, "b": 40},
        "showlegend": False,
        "template": "none",
        "annotations": [],
        "uirevision": "run",
    }
    for index, (name, members) in enumerate(groups.items()):
        suffix = "" if index == 0 else str(index + 1)
        _place(layout, name, suffix, index % columns, index // columns, columns, rows)
        data += [_trace(series, suffix, single=len(members) == 1) for series in members]
    return {"data": data, "layout": layout}


def _place(layout: dict[str, Any], name: str, suffix: str, column: int, row: int, columns: int, rows: int) -> None:
    width = (1 - _GAP * (columns - 1)) / columns
    height = (1 - 0.2 * (rows - 1) / rows) / rows
    left = column * (width + _GAP)
    top = 1 - row * (height + (0.2 / rows if rows > 1 else 0))
    layout[f"xaxis{suffix}"] = {
        "anchor": f"y{suffix}",
        "domain": [left, left + width],
        "title": {"text": "step", "font": {"size": 11}},
    }
    layout[f"yaxis{suffix}"] = {"anchor": f"x{suffix}", "domain": [max(0.0, top - height), top]}
    layout["annotations"].append(
        {"text": name, "x": left, "y": top, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom",
         "showarrow": False}
    )  # fmt: skip


def _trace(series: Series, suffix: str, single: bool) -> dict[str, Any]:
    steps, values = series.points()
    return {
        "type": "scatter",
        "mode": "lines" if len(steps) > 1 else "markers",
        "name": series.key,
        "x": _encoded(steps),
        "y": _encoded(values),
        "xaxis": f"x{suffix}",
        "yaxis": f"y{suffix}",
        "connectgaps": False,
        "line": {"width": 1.5, **({"color": "#1976d2"} if single else {})},
        "meta": {"key": series.key, "rank": 0},
    }


def _encoded(values: array[float]) -> dict[str, str]:
    """float32 where it holds the numbers to a millionth of their range, else float64."""
    small = all(math.isnan(v) or (abs(v) < 2**24 and v == round(v)) or 1e-30 < abs(v) < 1e30 or v == 0 for v in values)
    exact = all(v != v or float(v).is_integer() is False or abs(v) < 2**24 for v in values)
    kind, code = ("f4", "f") if small and exact else ("f8", "d")
    return {"dtype": kind, "bdata": base64.b64encode(array(code, values).tobytes()).decode()}
