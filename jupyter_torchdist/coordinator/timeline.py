"""Where the seconds of a launch went."""

from __future__ import annotations

import time

from jupyter_torchdist.records import RankPhase

#: the part that ends when the last rank has come this far
_PARTS = {RankPhase.STARTED: "start", RankPhase.LOADED: "import", RankPhase.JOINED: "rendezvous"}


class Timeline:
    """Seconds of each part of a launch, in their order: ship, schedule, start, import, rendezvous, first step."""

    def __init__(self, world_size: int, ship: float) -> None:
        self.seconds = {"ship": round(max(0.0, ship), 4)}
        self._world_size = world_size
        self._ranks: dict[RankPhase, set[int]] = {phase: set() for phase in _PARTS}
        self._last = time.monotonic()

    def reached(self, part: str) -> None:
        """A part is over; only its first end counts."""
        if part not in self.seconds:
            now = time.monotonic()
            self.seconds[part] = round(now - self._last, 4)
            self._last = now

    def rank_reached(self, rank: int, phase: RankPhase) -> None:
        """The last rank ends the part for all."""
        if phase in _PARTS:
            self._ranks[phase].add(rank)
            if len(self._ranks[phase]) == self._world_size:
                self.reached(_PARTS[phase])
