"""What is known of a node's memory when a process of it died."""

from __future__ import annotations

import os
import re

import psutil

_MB = 1_000_000
_SHARED = re.compile(r"^.*(?:bus error|shared memory|\bshm\b).*$", re.IGNORECASE | re.MULTILINE)


def oom_kills() -> int:
    """How many processes of this control group the kernel has ended because memory ran out."""
    try:
        with open("/proc/self/cgroup") as file:
            path = file.read().strip().rpartition("::")[2]
        with open(f"/sys/fs/cgroup{path}/memory.events") as file:
            words = dict(line.split() for line in file)
        return int(words.get("oom_kill", 0))
    except (OSError, ValueError):
        return 0


def death_hint(signal: str | None, max_rss: int, tail: str, killed_for_memory: bool) -> str:
    """A line about memory where that may be why a rank ended, else "". ``max_rss``: bytes."""
    if signal == "SIGKILL":
        memory = psutil.virtual_memory()
        figures = (
            f"it had used up to {max_rss // _MB} MB; the node has {memory.total // _MB} MB, "
            f"{memory.available // _MB} MB available now"
        )
        if killed_for_memory:
            return f"the kernel killed it because memory ran out: {figures}"
        return f"nobody asked for this: most often the kernel does it when memory runs out ({figures})"
    said = _SHARED.search(tail)
    if signal == "SIGBUS" or said:
        line = f"{said[0].strip()} " if said else ""
        return f"{line}(shared memory of this node, /dev/shm: {shared_memory()})"
    return ""


def shared_memory() -> str:
    """``64 MB, 3 MB free``."""
    try:
        found = os.statvfs("/dev/shm")  # noqa: S108  looked at, not written to
    except OSError:
        return "none"
    return f"{found.f_frsize * found.f_blocks // _MB} MB, {found.f_frsize * found.f_bavail // _MB} MB free"
