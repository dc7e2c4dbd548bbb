"""Where a rank stands: its stack, which faulthandler writes on a signal, and the CPU time it has used. No ptrace."""

from __future__ import annotations

import linecache
import os
import re

from jupyter_torchdist.records import Frame, Shown
from jupyter_torchdist.worker.exceptions import is_user_file

_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')
_TICKS = os.sysconf("SC_CLK_TCK")


def parse(dump: str, shown: Shown) -> tuple[Frame, ...]:
    """The frames of the thread that runs the train function, outermost first, launcher frames left out."""
    blocks = dump.split("\n\n")
    block = next((b for b in blocks if b.startswith("Current thread")), blocks[-1])
    frames = []
    for line in block.splitlines():
        if match := _FRAME.fullmatch(line):
            file, number = match["file"], int(match["line"])
            place = shown.places.get(file, file)
            frames.append(Frame(place, number, match["function"], _line(file, number, shown), is_user_file(file)))
    frames.reverse()
    first = next((i for i, frame in enumerate(frames) if frame.user), 0)
    return tuple(frames[first:])


def _line(file: str, number: int, shown: Shown) -> str:
    if file in shown.sources:
        lines = shown.sources[file].splitlines()
        return lines[number - 1].strip() if number <= len(lines) else ""
    return linecache.getline(file, number).strip() if os.path.isabs(file) else ""


def cpu_seconds(pid: int) -> float:
    """What all threads of a process have used until now. Raises ``OSError`` for one that is gone."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
