"""Whether a world can still go on: pure functions of where its ranks stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jupyter_torchdist.coordinator.failures import frame_lines, rank_list
from jupyter_torchdist.records import Frame, RankLook

_COLLECTIVES = ("/torch/distributed/", "/torch/nn/parallel/distributed.py")
_BACKWARD = "/torch/autograd/"
_WRAPPERS = ("wrapper", "_wrapped_call_impl", "_call_impl", "_fn")
#: a rank that waits uses less of a core than this
_IDLE = 0.05


@dataclass(frozen=True)
class Stand:
    """A collective that a rank waits in, and the user's line that called it."""

    call: str
    place: str

    def __str__(self) -> str:
        return f"{self.call} ({self.place})"


def stand(frames: Sequence[Frame]) -> Stand | None:
    """The collective that the innermost frames wait in; None for a rank that is anywhere else.

    A backward counts: DistributedDataParallel reduces gradients inside of it. Its CPU time tells whether it works.
    """
    calls = []
    for frame in reversed(frames):
        if frame.user:
            place = f"{frame.place}, line {frame.line}"
            break
        calls.append(frame)
    else:
        place = "outside of the cell"
    inside = any(part in frame.place for frame in calls for part in (*_COLLECTIVES, _BACKWARD))
    if not calls or not inside:
        return None
    named = next((frame for frame in reversed(calls) if frame.function not in _WRAPPERS), calls[-1])
    return Stand(named.function, place)


def is_idle(before: RankLook, after: RankLook) -> bool:
    """Whether a rank used next to no CPU between two looks at it."""
    return after.cpu - before.cpu <= _IDLE * max(0.0, after.time - before.time)


def is_locked(stands: Mapping[int, Stand | None], returned: Sequence[int]) -> bool:
    """Whether no rank that still runs can get out: all wait in collectives, and a peer is gone or elsewhere."""
    waits = list(stands.values())
    if not waits or any(wait is None for wait in waits):
        return False
    return bool(returned) or len(set(waits)) > 1


def disagreement(stands: Mapping[int, Stand | None], returned: Sequence[int], seconds: float) -> str:
    """Who waits where, and who has finished."""
    by_stand: dict[str, list[int]] = {}
    for rank, wait in stands.items():
        by_stand.setdefault(str(wait), []).append(rank)
    parts = [f"{rank_list(ranks)} wait{'s' if len(ranks) == 1 else ''} in {wait}" for wait, ranks in by_stand.items()]
    if returned:
        parts.append(f"{rank_list(returned)} {'has' if len(returned) == 1 else 'have'} returned")
    reason = "a collective needs every rank" if returned else "their collectives differ"
    return f"{'; '.join(parts)}. No rank can go on, since {reason}; ended after {seconds:.0f} s"


def stack_lines(stacks: Mapping[int, Sequence[Frame]]) -> list[str]:
    """The stacks of all ranks, equal ones once; the ranks that others wait for are named first."""
    groups: dict[tuple[Frame, ...], list[int]] = {}
    for rank, frames in sorted(stacks.items()):
        groups.setdefault(tuple(frames), []).append(rank)
    waiting = [rank for rank, frames in stacks.items() if stand(frames) is not None]
    behind = sorted(rank for rank in stacks if rank not in waiting)
    lines = []
    if waiting and behind:
        lines.append(f"{rank_list(sorted(waiting))} wait{'s' if len(waiting) == 1 else ''} for {rank_list(behind)}")
    for frames, ranks in sorted(groups.items(), key=lambda group: (len(group[1]), group[1])):
        lines.append(f"{rank_list(ranks)}:")
        lines += [f"  {line}" for line in frame_lines(frames) or ["no answer: its stack could not be read"]]
    return lines
