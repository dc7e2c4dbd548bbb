"""The life of a run as a pure state machine: ``step(life, event) → (life, actions)``.

waiting ─ Leased ─▶ starting ─ RankEntered ─▶ running ─ every rank exited ─▶ publishing ─ Published ─▶ finished
   │                   │                         │                                                     failed
   └── StopAsked, RankFailed, TimedOut, NodeLost ┴──▶ stopping ─ every rank exited ─▶ publishing       stopped
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace

from jupyter_torchdist.records import RunState

#: ranks whose peer failed get this long to fail by themselves, so that the same error on all of them is told as one
FAILURE_PAUSE = 0.5
#: and this long between SIGTERM and SIGKILL
TERM_GRACE = 1.0


@dataclass(frozen=True)
class Life:
    """Where a run stands. ``stop``: how often a stop was asked for; ``alive``: ranks with a process."""

    world_size: int
    grace: float = 10.0
    state: RunState = RunState.WAITING
    launched: bool = False
    alive: frozenset[int] = frozenset()
    failed: bool = False
    timed_out: bool = False
    refused: bool = False
    stop: int = 0


@dataclass(frozen=True)
class Leased:
    """The resources are there."""


@dataclass(frozen=True)
class Refused:
    """The run can not start: its resources can never be had, or a node can not take part."""


@dataclass(frozen=True)
class Launched:
    """Every agent has started its ranks."""


@dataclass(frozen=True)
class RankEntered:
    """A rank's train function has begun."""

    rank: int


@dataclass(frozen=True)
class RankFailed:
    """A rank raised, or ended without having returned."""

    rank: int


@dataclass(frozen=True)
class RankExited:
    """A rank's process is gone."""

    rank: int


@dataclass(frozen=True)
class StopAsked:
    """Someone wants the run to end; a second time, or with ``force``: now."""

    force: bool = False


@dataclass(frozen=True)
class TimedOut:
    """The run's ``timeout`` is over."""


@dataclass(frozen=True)
class TimerRang:
    """A ``SetTimer`` is over; ``number`` is the signal whose turn it is."""

    number: int


@dataclass(frozen=True)
class Published:
    """Everything is in the stage and nothing of the run is left on a node."""


Event = (
    Leased | Refused | Launched | RankEntered | RankFailed | RankExited | StopAsked | TimedOut | TimerRang | Published
)


@dataclass(frozen=True)
class Launch:
    """Start the ranks."""


@dataclass(frozen=True)
class AskStop:
    """Make ``should_stop()`` true on every rank."""


@dataclass(frozen=True)
class Signal:
    """Send a signal to every rank that still runs."""

    number: int


@dataclass(frozen=True)
class SetTimer:
    """Ring after ``seconds``."""

    seconds: float
    number: int


@dataclass(frozen=True)
class Publish:
    """End what is left of the ranks, bring the files to the stage, give the resources back."""


@dataclass(frozen=True)
class Finish:
    """Write the end of the run."""


Action = Launch | AskStop | Signal | SetTimer | Publish | Finish


def step(life: Life, event: Event) -> tuple[Life, tuple[Action, ...]]:
    """Every event leads somewhere from every state; nothing comes after a final state."""
    if life.state.final:
        return life, ()
    match event:
        case Published():
            if life.state is not RunState.PUBLISHING:
                return life, ()
            return replace(life, state=_end(life)), (Finish(),)
        case RankExited(rank):
            return _gone(life, rank)
        case StopAsked(force):
            return _stop(replace(life, stop=life.stop + 1), force or life.stop >= 1)
        case TimedOut():
            return _stop(replace(life, timed_out=True), force=False) if _unhurt(life) else (life, ())
        case TimerRang(number):
            return _ring(life, number)
        case Leased() if life.state is RunState.WAITING:
            return replace(life, state=RunState.STARTING), (Launch(),)
        case Refused() if not life.launched and life.state is not RunState.PUBLISHING:
            return replace(life, refused=True, failed=not life.stop, state=RunState.PUBLISHING), (Publish(),)
        case Launched() if life.state in (RunState.STARTING, RunState.STOPPING) and not life.launched:
            return _launched(life)
        case RankEntered() if life.state is RunState.STARTING:
            return replace(life, state=RunState.RUNNING), ()
        case RankFailed() if life.state is not RunState.WAITING:
            return _fail(life)
    return life, ()


def _unhurt(life: Life) -> bool:
    return life.state in (RunState.WAITING, RunState.STARTING, RunState.RUNNING)


def _launched(life: Life) -> tuple[Life, tuple[Action, ...]]:
    life = replace(life, launched=True, alive=frozenset(range(life.world_size)))
    if life.state is RunState.STOPPING:  # asked to stop while the ranks were being started
        return life, (Signal(signal.SIGKILL),)
    return life, ()


def _stop(life: Life, force: bool) -> tuple[Life, tuple[Action, ...]]:
    if life.state is RunState.WAITING:
        return replace(life, state=RunState.PUBLISHING), (Publish(),)
    if life.state is RunState.PUBLISHING:
        return life, ()
    already = life.state is RunState.STOPPING
    life = replace(life, state=RunState.STOPPING)
    if not life.launched:
        return life, ()
    if force:
        return life, (AskStop(), Signal(signal.SIGKILL))
    if already:
        return life, (AskStop(),)
    return life, (AskStop(), Signal(signal.SIGINT), SetTimer(life.grace, signal.SIGTERM))


def _ring(life: Life, number: int) -> tuple[Life, tuple[Action, ...]]:
    if life.state is not RunState.STOPPING or not life.alive:
        return life, ()
    if number == signal.SIGTERM:
        return life, (Signal(signal.SIGTERM), SetTimer(TERM_GRACE, signal.SIGKILL))
    return life, (Signal(signal.SIGKILL),)


def _fail(life: Life) -> tuple[Life, tuple[Action, ...]]:
    if not _unhurt(life):  # ranks that fail while they are being ended are no news
        return life, ()
    life = replace(life, failed=True, state=RunState.STOPPING)
    return life, (AskStop(), SetTimer(FAILURE_PAUSE, signal.SIGTERM))


def _gone(life: Life, rank: int) -> tuple[Life, tuple[Action, ...]]:
    if rank not in life.alive:
        return life, ()
    life = replace(life, alive=life.alive - {rank})
    if life.alive:
        return life, ()
    return replace(life, state=RunState.PUBLISHING), (Publish(),)


def _end(life: Life) -> RunState:
    if life.failed or life.timed_out:
        return RunState.FAILED
    return RunState.STOPPED if life.stop else RunState.FINISHED
