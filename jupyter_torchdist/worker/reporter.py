"""Metrics of a rank: one encoded line appended to a file in shared memory that the agent drains.

An append never waits, has no lock and no thread, and outlives a SIGKILL of the rank the moment it has returned.
"""

from __future__ import annotations

import math
import numbers
import os
import sys
import time
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

from jupyter_torchdist.records import MetricValue, Scalar, encode_report

_MAX_LIST = 4096
_MAX_DEPTH = 4
_PLAIN = (float, int, bool)


class MetricsReporter:
    """``log_metrics`` on any rank, any number of times; it never waits and never raises for a bad value."""

    def __init__(self, rank: int, report_fd: int, send_note: Callable[[dict[str, Any]], None] | None = None) -> None:
        self._rank = rank
        self._fd = report_fd
        self._send_note = send_note
        self._count = 0
        self._warned: set[str] = set()

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Reports metrics by name.

        Values: int, float, bool, numpy and torch scalars of any device, and lists or 1-D arrays of numbers; a nested
        mapping becomes ``outer/inner``. Anything else is left out with one warning that names the key.
        ``step``: any int; ``None`` counts the reports.
        """
        when = time.time()
        number = self._step(step)
        self._count += 1
        given: object = metrics
        if type(given) is not dict and not isinstance(given, Mapping):
            self._warn("", f"log_metrics takes a dict of names to numbers, got {type(metrics).__name__}; left out")
            return
        values: dict[str, MetricValue] = {}
        for key, value in metrics.items():
            # the common case first: a report of plain floats is a dictionary copy and one write
            if type(value) is float and type(key) is str:
                values[key] = value
            else:
                self._add(values, str(key), value, 0)
        if values or not metrics:
            os.write(self._fd, encode_report(self._rank, number, when, values))

    def set_total(self, n: int) -> None:
        """Says how many steps the run will have, for the progress bar."""
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            self._warn("set_total", f"set_total takes a whole number of at least 1, got {n!r}; left out")
            return
        self._note({"total": n})

    def log_text(self, name: str, text: str) -> None:
        """Keeps a text under a name, in ``events.jsonl``."""
        self._note({"text": {"name": _clean(str(name)), "text": _clean(str(text)[:100_000])}})

    def _note(self, note: dict[str, Any]) -> None:
        if self._send_note is not None:
            self._send_note(note)

    def _step(self, step: Any) -> int:
        if type(step) is int and -(2**63) <= step < 2**63:
            return step
        if step is None:
            return self._count
        try:
            number = int(step)
            if not -(2**63) <= number < 2**63:
                raise OverflowError
        except Exception:
            self._warn("step", f"step is {_short(step)}, not an int of 64 bits; the number of the report is taken")
            return self._count
        return number

    def _add(self, values: dict[str, MetricValue], key: str, value: Any, depth: int) -> None:
        if isinstance(value, Mapping) and depth < _MAX_DEPTH:
            for name, inner in value.items():
                self._add(values, f"{key}/{name}", inner, depth + 1)
            return
        try:
            number = as_metric(value)
        except Exception as exc:
            self._warn(key, f"metric {key!r} is left out: {exc}")
            return
        values[key] = number

    def _warn(self, key: str, text: str) -> None:
        if key in self._warned or len(self._warned) > 100:
            return
        self._warned.add(key)
        try:
            sys.stderr.write(f"jupyter_torchdist: {text}\n")
            sys.stderr.flush()
        except (OSError, ValueError, AttributeError):  # the train function closed or replaced it
            return


def as_metric(value: Any) -> MetricValue:
    """A number, or a list of numbers, from what people log. Raises ``TypeError`` or ``ValueError`` that says why."""
    scalar = _scalar(value)
    if scalar is not None:
        return scalar
    if hasattr(value, "detach"):  # a torch tensor
        value = value.detach()
        if getattr(value, "is_complex", bool)():
            raise TypeError("it is complex; log its real and imaginary parts")
        value = value.item() if value.numel() == 1 else _checked(value.ndim, value.numel(), value).tolist()
    elif hasattr(value, "tolist") and hasattr(value, "ndim"):  # a numpy scalar or array
        value = value.item() if value.size == 1 else _checked(value.ndim, value.size, value).tolist()
    elif isinstance(value, (Decimal, Fraction)):
        return _from_number(value)
    elif hasattr(value, "item") and not isinstance(value, (str, bytes)):
        value = value.item()
    if isinstance(value, (list, tuple, range)):
        if len(value) > _MAX_LIST:
            raise ValueError(f"it has {len(value)} values; at most {_MAX_LIST} are kept")
        return [_element(v) for v in value]
    scalar = _scalar(value)
    if scalar is None and isinstance(value, numbers.Real):  # numpy.longdouble
        return _from_number(value)
    if scalar is None:
        raise TypeError(f"{_short(value)} is a {type(value).__name__}, not a number")
    return scalar


def _checked(ndim: int, size: int, value: Any) -> Any:
    if ndim > 1:
        raise TypeError(f"it has {ndim} dimensions; numbers and lists of numbers are kept")
    if size > _MAX_LIST:
        raise ValueError(f"it has {size} values; at most {_MAX_LIST} are kept")
    return value


def _scalar(value: Any) -> Scalar | None:
    if type(value) in _PLAIN:
        if type(value) is int and not -(2**63) <= value < 2**64:
            return _from_number(value)
        return value  # type: ignore[no-any-return]
    if isinstance(value, _PLAIN):  # subclasses: numpy.float64, IntEnum
        return _scalar(int(value) if isinstance(value, int) else float(value))
    return None


def _from_number(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # an int or a Decimal beyond the range of a double
        return math.inf if value > 0 else -math.inf


def _element(value: Any) -> Scalar:
    number = as_metric(value)
    if isinstance(number, list):
        raise TypeError("it is a list of lists; numbers and lists of numbers are kept")
    return number


def _clean(text: str) -> str:
    """A lone surrogate can not be encoded, so it is escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def _short(value: Any) -> str:
    try:
        return repr(value)[:60]
    except Exception:
        return f"a {type(value).__name__}"
