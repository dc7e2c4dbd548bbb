"""From a live exception to an ``ErrorRecord``: values only, so that any exception can be shown anywhere."""

from __future__ import annotations

import linecache
import re
import resource
import sys
import sysconfig
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from jupyter_torchdist.records import ErrorRecord, Frame

_PACKAGE = str(Path(__file__).resolve().parent.parent) + "/"
_LIBRARIES = tuple(
    {sysconfig.get_path(name) + "/" for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {str(Path(sys.prefix)) + "/"}
)
_MAX_FRAMES = 60
_MAX_DEPTH = 8


def is_user_file(filename: str) -> bool:
    """Neither this package, nor the standard library, nor an installed package."""
    return not filename.startswith((_PACKAGE, *_LIBRARIES)) and not filename.startswith("<frozen")


def error_record(exc: BaseException, places: Mapping[str, str], depth: int = 0) -> ErrorRecord:
    """``places`` maps a file name to how it is shown, e.g. the cell's. Launcher frames are left out."""
    deeper = depth < _MAX_DEPTH

    def record(inner: BaseException | None) -> ErrorRecord | None:
        return error_record(inner, places, depth + 1) if inner is not None and deeper else None

    group = exc.exceptions[:10] if isinstance(exc, BaseExceptionGroup) else ()
    return ErrorRecord(
        type=_type_name(type(exc)),
        message=_message(exc),
        frames=_frames(exc, places),
        notes=tuple(str(n)[:2000] for n in getattr(exc, "__notes__", ())[:20]),
        cause=record(exc.__cause__),
        context=record(exc.__context__) if exc.__cause__ is None and not exc.__suppress_context__ else None,
        group=tuple(r for r in map(record, group) if r),
    )


def _type_name(cls: type) -> str:
    module = cls.__module__
    return cls.__qualname__ if module in ("builtins", "__main__") else f"{module}.{cls.__qualname__}"


def _message(exc: BaseException) -> str:
    if isinstance(exc, SyntaxError):
        return f"{exc.msg} (line {exc.lineno})"
    try:
        text = str(exc)
    except Exception:
        return "<the message could not be made>"
    return text[:8000].encode("utf-8", "backslashreplace").decode()


def _frames(exc: BaseException, places: Mapping[str, str]) -> tuple[Frame, ...]:
    frames = [
        Frame(
            place=places.get(summary.filename, summary.filename),
            line=summary.lineno or 0,
            function=summary.name,
            source=summary.line or "",
            user=summary.filename in places or is_user_file(summary.filename),
        )
        for summary in _walk(exc.__traceback__)
        if not summary.filename.startswith(_PACKAGE)
    ]
    if isinstance(exc, SyntaxError) and exc.filename:
        name = exc.filename
        source = (exc.text or linecache.getline(name, exc.lineno or 0)).strip()
        frames.append(Frame(places.get(name, name), exc.lineno or 0, "<module>", source, name in places))
    if len(frames) > _MAX_FRAMES:  # a deep recursion: its start and its end say all
        frames = frames[: _MAX_FRAMES // 2] + frames[-_MAX_FRAMES // 2 :]
    return tuple(frames)


def _walk(tb: TracebackType | None) -> traceback.StackSummary:
    return traceback.StackSummary.extract(traceback.walk_tb(tb), lookup_lines=True)


def with_limits(record: ErrorRecord) -> ErrorRecord:
    """A note where a limit of the process is the cause, which the message of the library does not tell."""
    text = record.message
    if re.search(r"too many open files|items of ancdata|\[errno 24\]", text, re.IGNORECASE):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        note = (
            f"this process may have {limit} file descriptors open at a time (ulimit -n), and a batch that a DataLoader "
            "worker sent holds one each; raise the limit, or call "
            "torch.multiprocessing.set_sharing_strategy('file_system')"
        )
        return replace(record, notes=(*record.notes, note))
    return record
