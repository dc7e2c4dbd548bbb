"""The moments of one of our runs in seconds since the call, from the records that every run leaves in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

#: in the order in which they come
NAMES = (
    "the coordinator has the run",
    "resources are held, agents ready",
    "last rank started",
    "last rank joined the process group",
    "last rank entered the train function",
    "last rank past the all-reduce",
    "last rank returned",
    "last rank exited",
    "the coordinator ends the run",
    "the record is written",
    "the result is returned",
)
#: the state or phase in events.jsonl, and whether its own clock or the coordinator's counts
_EVENTS = {
    "resources are held, agents ready": "starting",
    "last rank started": "rank started",
    "last rank joined the process group": "rank joined",
    "last rank entered the train function": "rank entered",
    "last rank returned": "rank returned",
    "last rank exited": "rank exited",
    "the coordinator ends the run": "publishing",
    "the record is written": "end",
}


def moments(folder: Path, begin: float, reached: float, whole: float) -> dict[str, float]:
    """``begin`` is the call in Unix seconds; ``reached`` and ``whole`` are seconds since then."""
    events = _last_times(folder)
    found = {name: events[event] - begin for name, event in _EVENTS.items() if event in events}
    found["the coordinator has the run"] = orjson.loads((folder / "run.json").read_bytes())["started"] - begin
    found["last rank past the all-reduce"] = reached
    found["the result is returned"] = whole
    return {name: found[name] for name in NAMES if name in found}


def _last_times(folder: Path) -> dict[str, float]:
    """The last time of each event; of a rank's the time on the rank, not that of its arrival."""
    times: dict[str, float] = {}
    for line in (folder / "events.jsonl").read_bytes().splitlines():
        event: dict[str, Any] = orjson.loads(line)
        name = event["state"] if event["event"] == "state" else event["event"]
        times[name] = max(times.get(name, 0.0), event.get("at", event["time"]))
    return times
