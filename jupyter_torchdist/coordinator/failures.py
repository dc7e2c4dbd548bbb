"""Which failure came first, and which ranks only lost their peer: pure functions of records."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from jupyter_torchdist.records import ErrorCard, ErrorRecord, Failure, Frame

#: what gloo, NCCL and torch's store say when another rank is gone
_LOST_PEER = re.compile(
    r"connection (?:was )?(?:closed|reset)|closed by peer|socket closed|broken pipe|connection refused"
    r"|remote process exited|ncclremoteerror|timed out waiting|wait timeout|recvvalue|store.*(?:reset|closed)"
    r"|no route to host|failed to connect|process group.*abort|\[.*gloo/transport",
    re.IGNORECASE,
)
_DISTRIBUTED = ("torch.distributed.", "torch._C._distributed")


def is_consequence(error: ErrorRecord | None, signal: str | None, ended_by_us: bool) -> bool:
    """Whether a rank failed because another one had."""
    if ended_by_us and (signal in ("SIGTERM", "SIGKILL", "SIGINT") or (error and error.type == "KeyboardInterrupt")):
        return True
    if error is None:
        return False
    by_type = error.type.startswith(_DISTRIBUTED) or error.type in ("RuntimeError", "ConnectionError")
    return by_type and bool(_LOST_PEER.search(error.message))


def in_order(failures: Sequence[Failure], returned: Sequence[int] = ()) -> tuple[Failure, ...]:
    """First causes by time, then consequences by time; where all look like consequences the earliest is the cause.

    The peer that they lost may have ``returned``: then that is told.
    """
    ordered = sorted(failures, key=lambda f: (f.consequence, f.time))
    if ordered and ordered[0].consequence:
        ordered[0] = replace(ordered[0], consequence=False, hint=ordered[0].hint or _gone_ahead(returned))
    return tuple(ordered)


def _gone_ahead(returned: Sequence[int]) -> str:
    if not returned:
        return ""
    has = "has" if len(returned) == 1 else "have"
    return f"{rank_list(returned)} {has} returned before: a collective needs every rank of its group"


def card(failures: Sequence[Failure]) -> ErrorCard | None:
    """The failures of a run as the cell shows them: one cause, everything else in a line."""
    if not failures:
        return None
    first = failures[0]
    same = [f.rank for f in failures if not f.consequence and _kind(f) == _kind(first)]
    other = [f for f in failures if not f.consequence and _kind(f) != _kind(first)]
    lost = [f.rank for f in failures if f.consequence]
    notes = [f"{rank_list(lost)} lost {'their' if len(lost) > 1 else 'its'} peer"] if lost else []
    notes += [f"rank {f.rank}: {_headline(f)}" for f in other[:3]]
    if len(other) > 3:
        notes.append(f"{len(other) - 3} more failed otherwise")
    title = f"{_headline(first)} on {rank_list(same)} (node {first.node}, {first.host})"
    return ErrorCard(title[:1000], tuple(describe(first)), "; ".join(notes))


def _kind(failure: Failure) -> tuple[object, ...]:
    """Failures of one kind differ in the rank alone, also where their text has its number."""
    error = failure.error
    if error is None:
        return failure.exitcode, failure.signal
    place = next(((f.place, f.line) for f in reversed(error.frames) if f.user), None)
    return error.type, re.sub(r"\d+", "#", error.message), place


def rank_list(ranks: Sequence[int]) -> str:
    """``rank 3``, ``ranks 0, 1``; at most eight by number."""
    shown = ", ".join(map(str, sorted(ranks)[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


def _headline(failure: Failure) -> str:
    error = failure.error
    if error is not None and error.type != "SystemExit":
        first_line = error.message.splitlines()[0] if error.message.strip() else ""
        return f"{error.type}: {first_line}" if first_line else error.type
    if failure.signal:
        return f"killed by {failure.signal}"
    return f"exited with code {failure.exitcode}"


def describe(failure: Failure) -> list[str]:
    """The lines under the title: the user's frames, the whole message, notes, causes, or the output's tail."""
    lines: list[str] = []
    if failure.error is not None:
        lines += _error_lines(failure.error)
    if failure.hint:
        lines.append(failure.hint)
    if (failure.error is None or failure.error.type == "SystemExit") and failure.tail:
        lines += ["last output:", *(f"  {line}" for line in failure.tail.splitlines()[-20:])]
    return lines


def _error_lines(error: ErrorRecord, depth: int = 0) -> list[str]:
    lines: list[str] = []
    for label, inner in (("caused by", error.cause), ("while handling", error.context)):
        if inner is not None and depth < 4:
            lines += [
                *_error_lines(inner, depth + 1),
                f"── {label} the above:" if label == "caused by" else f"── {label}:",
            ]
    lines += frame_lines(error.frames)
    message = error.message.splitlines() or [""]
    lines.append(f"{error.type}: {message[0]}" if message[0] else error.type)
    lines += message[1:40]
    lines += error.notes
    for inner in error.group[:5]:
        lines += [f"  | {line}" for line in _error_lines(inner, depth + 1)] if depth < 4 else []
    return lines


def frame_lines(frames: Sequence[Frame]) -> list[str]:
    """The user's own lines; library frames only after the last of them, and at most three."""
    own = [i for i, frame in enumerate(frames) if frame.user]
    last = own[-1] if own else -1
    shown = [f for i, f in enumerate(frames) if f.user or i > last]
    behind = [f for f in shown if not f.user]
    if len(behind) > 3:
        shown = [f for f in shown if f.user] + behind[-3:]
    lines = []
    for frame in shown:
        lines.append(f"{frame.place}, line {frame.line}, in {frame.function}")
        if frame.source:
            lines.append(f"    {frame.source}")
    return lines


def summary(failures: Sequence[Failure]) -> str:
    """The text of a ``WorkerError``."""
    made = card(failures)
    if made is None:
        return "the run failed"
    return "\n".join([made.title, *made.lines, *([made.also] if made.also else [])])
