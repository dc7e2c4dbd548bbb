"""Series for drawing: the points of a metric thinned as they come, so that the kernel does not grow with a run."""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from jupyter_torchdist.records import Report, SeriesDelta

#: a list-valued metric is drawn up to this many positions
MAX_POSITIONS = 16
MAX_SERIES = 256
_MAX_POINTS = 1000
#: newest points sent beside the taken ones before all is sent anew
_MAX_EXTRA = 250
_GAP = math.nan


class Series:
    """At most 1,000 points: when they are too many every second is dropped and later ones are taken half as often.

    One thread adds while another one draws.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self.steps = array("d")
        self.values = array("d")
        self._stride = 1
        self._skipped = 0
        self._last: tuple[float, float] | None = None
        self._lock = threading.RLock()

    def add(self, step: float, value: float) -> None:
        """Takes a point; a step that is not larger than the one before begins a new segment."""
        with self._lock:
            self._add(step, value)

    def _add(self, step: float, value: float) -> None:
        back = self._last is not None and step <= self._last[0]
        self._last = (step, value)
        if back:
            self._append(_GAP, _GAP)
            self._skipped = 0
        elif self._skipped + 1 < self._stride:
            self._skipped += 1
            return
        self._skipped = 0
        self._append(step, value if math.isfinite(value) else _GAP)

    def _append(self, step: float, value: float) -> None:
        self.steps.append(step)
        self.values.append(value)
        if len(self.steps) > _MAX_POINTS:
            keep = [i for i in range(len(self.steps)) if i % 2 == 0 or math.isnan(self.steps[i])]
            self.steps = array("d", (self.steps[i] for i in keep))
            self.values = array("d", (self.values[i] for i in keep))
            self._stride *= 2
            if len(self.steps) > _MAX_POINTS // 2 + _MAX_POINTS // 4:  # nothing but segment starts: the newest stay
                self.steps, self.values = self.steps[-_MAX_POINTS // 2 :], self.values[-_MAX_POINTS // 2 :]

    def points(self) -> tuple[array[float], array[float]]:
        """All points, the very last one too."""
        with self._lock:
            return self._points()

    def _points(self) -> tuple[array[float], array[float]]:
        steps, values = self.steps[:], self.values[:]
        if self._last is not None and (not steps or steps[-1] != self._last[0]):
            steps.append(self._last[0])
            values.append(self._last[1] if math.isfinite(self._last[1]) else _GAP)
        return steps, values

    def after(self, sent: Sent | None) -> tuple[SeriesDelta | None, Sent]:
        """What is new for a reader who has ``sent`` (None: nothing), the very last point too, and what it has then."""
        with self._lock:
            count, extra = len(self.steps), 0
            reset = sent is None or sent.stride != self._stride or sent.extra >= _MAX_EXTRA or sent.count > count
            if sent is not None and not reset:
                if self._last == sent.last and sent.count == count:
                    return None, sent
                extra = sent.extra
            start = 0 if reset or sent is None else sent.count
            steps, values = self._points()
            now = Sent(count, self._last, extra + (len(steps) > count), self._stride)
            return SeriesDelta(self.key, 0, reset, steps[start:].tobytes(), values[start:].tobytes()), now


@dataclass(frozen=True)
class Sent:
    """How much of a series a reader has. ``extra``: newest points that it got beside the taken ones."""

    count: int
    last: tuple[float, float] | None
    extra: int
    stride: int


class SeriesTable:
    """The series of a run's rank 0, by key; ``last`` holds the newest value of each metric as it was reported."""

    def __init__(self) -> None:
        self._series: dict[str, Series] = {}
        self.last: dict[str, object] = {}

    def add(self, report: Report) -> None:
        for key, value in report.metrics.items():
            self.last[key] = value
            if isinstance(value, list):
                for position, number in enumerate(value[:MAX_POSITIONS]):
                    self._point(f"{key}[{position}]", report.step, float(number))
            else:
                self._point(key, report.step, float(value))

    def _point(self, key: str, step: int, value: float) -> None:
        series = self._series.get(key)
        if series is None:
            if len(self._series) >= MAX_SERIES:
                return
            series = self._series[key] = Series(key)
        series.add(float(step), value)

    def __iter__(self) -> Iterator[Series]:
        return iter(list(self._series.values()))

    def __len__(self) -> int:
        return len(self._series)


class SeriesReader:
    """One reader of a table: each call of ``deltas`` brings what this reader does not have yet."""

    def __init__(self, table: SeriesTable) -> None:
        self._table = table
        self._sent: dict[str, Sent] = {}

    def deltas(self, everything: bool = False) -> list[SeriesDelta]:
        found = []
        for series in self._table:
            delta, self._sent[series.key] = series.after(None if everything else self._sent.get(series.key))
            if delta is not None:
                found.append(delta)
        return found
