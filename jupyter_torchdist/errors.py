"""Every exception that a user of jupyter_torchdist can meet.

All are picklable, and the text of each is one fact, its numbers, and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jupyter_torchdist.records import Failure


class _Shown:
    """Shows an error in a notebook as its own text, without the frames of the launcher."""

    def _render_traceback_(self) -> list[str]:
        # The name is IPython's protocol for exceptions that draw themselves.
        return [f"\x1b[31m{type(self).__name__}\x1b[0m: {self}"]


class TorchdistError(_Shown, RuntimeError):
    """The base of all errors of this package; a ``RuntimeError``, as the reference raises."""


class ConfigError(TorchdistError, ValueError):
    """A value that was passed is wrong; raised before anything starts."""


class ClusterError(TorchdistError):
    """The Ray cluster could not be started or reached, or refuses the run."""


class NotEnoughResources(ClusterError):
    """The request can never fit the cluster; the text has both numbers."""


class CaptureError(TorchdistError):
    """Something that the cell or the train function uses can not be shipped to the ranks.

    ``names`` are the notebook variables at fault.
    """

    def __init__(self, message: str, names: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.names = tuple(names)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.names)


class WorkerError(TorchdistError):
    """A rank failed.

    ``failures`` holds every failure, the first cause first; the other attributes are those of the first:
    ``rank``, ``node`` (node rank), ``exitcode`` or None, ``signal`` (its name) or None, ``traceback`` (text).
    """

    def __init__(self, message: str, failures: Sequence[Failure] = ()) -> None:
        super().__init__(message)
        self.failures = tuple(failures)
        first = self.failures[0] if self.failures else None
        self.rank: int | None = first.rank if first else None
        self.node: int | None = first.node if first else None
        self.exitcode: int | None = first.exitcode if first else None
        self.signal: str | None = first.signal if first else None
        self.traceback: str = first.traceback if first else ""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.failures)


class RunTimeout(TorchdistError):
    """The run took longer than its ``timeout`` and was ended; what it had reported is kept."""


class RunLost(TorchdistError):
    """The coordinator or the cluster died under the run; what had been written is kept."""


class ResultError(TorchdistError):
    """The return value of a rank could not be brought to the notebook; everything else of the run is there."""


class RunStopped(_Shown, KeyboardInterrupt):
    """The run was stopped on request; its metrics and files are kept."""
