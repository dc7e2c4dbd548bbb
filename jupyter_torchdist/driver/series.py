"""Series for drawing: the points of a metric thinned as they come, so that the kernel does not grow with a run."""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Iterator

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
        self._sent = 0
        self._sent_last: tuple[float, float] | None = None
        self._extra = 0
        self._reset = True
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
            self._reset = True
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

    def delta(self, everything: bool = False) -> SeriesDelta | None:
        """What is new since the last call, the very last point too; None when nothing is."""
        with self._lock:
            return self._delta(everything)

    def _delta(self, everything: bool) -> SeriesDelta | None:
        reset = everything or self._reset or self._extra >= _MAX_EXTRA
        start = 0 if reset else self._sent
        if not reset and self._last == self._sent_last and start == len(self.steps):
            return None
        steps, values = self.points()
        self._extra = 0 if reset else self._extra
        self._extra += len(steps) > len(self.steps)
        self._sent, self._sent_last, self._reset = len(self.steps), self._last, False
        return SeriesDelta(self.key, 0, reset, steps[start:].tobytes(), values[start:].tobytes())


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

    def deltas(self, everything: bool = False) -> list[SeriesDelta]:
        return [d for d in (s.delta(everything) for s in self) if d is not None]

    def __iter__(self) -> Iterator[Series]:
        return iter(list(self._series.values()))

    def __len__(self) -> int:
        return len(self._series)
