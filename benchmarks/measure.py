"""What every benchmark shares: statistics of seconds, tables, and the lines that say where it was measured."""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("torch", "ray", "accelerate", "torchrunx", "tensorboard")


@dataclass(frozen=True)
class Summary:
    """Some measured seconds in six numbers."""

    count: int
    median: float
    p99: float
    least: float
    most: float


def summarize(seconds: Sequence[float]) -> Summary:
    """Raises ``ValueError`` for none."""
    if not seconds:
        raise ValueError("nothing was measured")
    return Summary(len(seconds), statistics.median(seconds), quantile(seconds, 0.99), min(seconds), max(seconds))


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that a share ``q`` of all values does not exceed: a measured one, nothing between two."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def span(seconds: float) -> str:
    """Seconds as people read them: ``3.1 µs``, ``42 ms``, ``27.4 s``."""
    if seconds >= 0.9995:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    if seconds >= 0.9995e-3:
        return f"{seconds * 1e3:.1f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-4 else f"{seconds * 1e6:.0f} µs"


def times(ratio: float) -> str:
    """A ratio with two figures that matter: ``0.83 ×``, ``3.2 ×``, ``640 ×``."""
    return f"{ratio:.2f} ×" if ratio < 2 else f"{ratio:.1f} ×" if ratio < 100 else f"{ratio:,.0f} ×"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns line up."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = [_row(row, widths) for row in (head, ["-" * width for width in widths], *rows)]
    return "\n".join(lines)


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"


def header(what: str) -> str:
    """What was measured, when, on what machine, with which versions, and how busy the machine was before."""
    cores = len(os.sched_getaffinity(0))
    found = " · ".join(f"{name} {_version(name)}" for name in _PACKAGES)
    return "\n".join(
        (
            f"# {what}",
            f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC · {_cpu()}, {cores} cores · load {os.getloadavg()[0]:.1f}",
            f"Python {platform.python_version()} · {found}",
        )
    )


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
