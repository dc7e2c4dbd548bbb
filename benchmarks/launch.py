"""``python -m benchmarks launch``: how long it takes until two ranks work, beside the other ways to start them."""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.host import Host, NotMeasured
from benchmarks.measure import header, span, summarize, table, times
from benchmarks.moments import NAMES

_ROUND_SECONDS = 150
_SETTLE_SECONDS = 0.5


@dataclass
class Way:
    """A row of the table. ``every``: it takes part in one of so many rounds; ``fresh``: in a new process each time."""

    key: str
    title: str
    every: int = 1
    fresh: bool = False
    function: str = ""
    host: Host | None = None
    rounds: list[dict[str, Any]] = field(default_factory=list)
    reason: str = ""

    def seconds(self, what: str) -> list[float]:
        return [row[what] for row in self.rounds]


def ways() -> list[Way]:
    """The rows, ours first."""
    return [
        Way("ours", "jupyter_torchdist, warm"),
        Way("floor", "bare fork of a process with torch (the floor)"),
        Way("notebook_launcher", "accelerate `notebook_launcher`"),
        Way("torchrun", "`torchrun`", every=4),
        Way("torchrunx", "torchrunx", every=4),
        Way("ours_cold", "jupyter_torchdist, first run of a cluster", every=7, fresh=True, function="ours"),
        Way("ray_train", "Ray Train `TorchTrainer.fit`", every=10, fresh=True),
    ]


def run(rounds: int, only: Sequence[str]) -> None:
    """Measures and prints."""
    rows = [way for way in ways() if not only or way.key in only]
    print(header(f"launch: 2 ranks, gloo, one all-reduce, {rounds} rounds"), flush=True)
    try:
        for way in rows:
            if not way.fresh:
                _prepare(way)
        for number in range(rounds):
            _round(rows, number)
    finally:
        for way in rows:
            if way.host is not None:
                way.host.close()
    _print(rows)


def _prepare(way: Way) -> None:
    """Starts the process of a way, and lets it do once what is not counted."""
    try:
        _open(way)
        _ask(way)
    except NotMeasured as exc:
        _give_up(way, exc)


def _round(rows: list[Way], number: int) -> None:
    """Each way once, in an order that changes from round to round: none always follows the same other one."""
    due = [way for way in rows if number % way.every == 0 and not way.reason]
    random.Random(number).shuffle(due)
    for way in due:
        time.sleep(_SETTLE_SECONDS)
        try:
            way.rounds.append(_measure(way))
        except NotMeasured as exc:
            _give_up(way, exc)
    print(f"round {number + 1}: {', '.join(way.key for way in due)}", file=sys.stderr, flush=True)


def _measure(way: Way) -> dict[str, Any]:
    if not way.fresh:
        return _ask(way)
    try:
        _open(way)
        return _ask(way)
    finally:
        _close(way)


def _open(way: Way) -> None:
    way.host = Host("benchmarks.ways", way.function or way.key)


def _ask(way: Way) -> dict[str, Any]:
    assert way.host is not None
    answer: dict[str, Any] = way.host.ask(None, _ROUND_SECONDS)
    return answer


def _close(way: Way) -> None:
    if way.host is not None:
        way.host.close()
        way.host = None


def _give_up(way: Way, exc: NotMeasured) -> None:
    way.reason = str(exc)
    _close(way)


# ---------------------------------------------------------------- what is printed


def _print(rows: list[Way]) -> None:
    for what, title in (
        ("reached", "call → every rank past its first all-reduce"),
        ("whole", "call → result returned"),
    ):
        print(f"\n## {title}\n")
        head = (title.split(" → ")[1], "median", "min", "max", "rounds", "ours warm = 1")
        print(table(head, [_cells(way, what, _median(rows, "ours", what)) for way in rows]))
    _print_moments(rows)
    _print_targets(rows)


def _cells(way: Way, what: str, ours: float | None) -> list[str]:
    if not way.rounds:
        return [way.title, f"not measured: {way.reason or 'no round'}", "", "", "0", ""]
    found = summarize(way.seconds(what))
    ratio = times(found.median / ours) if ours else ""
    count = f"{found.count}" + (f", then: {way.reason}" if way.reason else "")
    return [way.title, span(found.median), span(found.least), span(found.most), count, ratio]


def _median(rows: list[Way], key: str, what: str) -> float | None:
    found = [way for way in rows if way.key == key and way.rounds]
    return statistics.median(found[0].seconds(what)) if found else None


def _print_moments(rows: list[Way]) -> None:
    """Where the time of our warm runs goes; medians, so a step is not the difference of two rows."""
    runs = [row["moments"] for way in rows if way.key == "ours" for row in way.rounds]
    if not runs:
        return
    cells = []
    for before, name in zip((None, *NAMES), NAMES, strict=False):
        at = statistics.median(run[name] for run in runs)
        step = statistics.median(run[name] - (run[before] if before else 0.0) for run in runs)
        cells.append([name, f"{at * 1e3:.1f}", f"{step * 1e3:.1f}"])
    print("\n## a warm run of ours, from its records\n")
    print(table(("moment", "ms after the call", "step, ms"), cells))


def _print_targets(rows: list[Way]) -> None:
    lines = [
        _target(rows, "reached", "ours", "floor", "at most 1.5", "warm launch over the floor"),
        _target(rows, "reached", "ray_train", "ours", "at least 100", "Ray Train over warm launch"),
        _target(rows, "whole", "ours", "notebook_launcher", "at most 1", "whole warm run over notebook_launcher"),
    ]
    cold = _median(rows, "ours_cold", "reached")
    if cold is not None:
        lines.append(f"- first run of a cluster: {span(cold)} (target: at most 3 s)")
    print("\n## targets\n")
    print("\n".join(line for line in lines if line))


def _target(rows: list[Way], what: str, above: str, below: str, target: str, title: str) -> str:
    one, other = _median(rows, above, what), _median(rows, below, what)
    return f"- {title}: {times(one / other)} (target: {target})" if one and other else ""
