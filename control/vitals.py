"""What this control plane has done, counted as it goes: turns of runs, and periodic work."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Final

from trainmaster.histogram import SHORT_S, Histogram

OUTCOMES: Final = ("changed", "unchanged", "overtaken", "unreadable", "failed")
"""How a turn may end: the run was changed, there was nothing to change, somebody else changed it
first, its rows are damaged, or the code failed.
"""
ENDINGS: Final = ("done", "put_off", "failed")
"""How a piece of periodic work may end; put off while the database is away or another leads."""


@dataclass(slots=True)
class Work:
    """One kind of periodic work."""

    ended: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENDINGS, 0))
    seconds: float = 0.0


class Vitals:
    """Counts of one process. May be told by several threads, and read by another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns = dict.fromkeys(OUTCOMES, 0)
        self._turn_s = Histogram(SHORT_S)
        self._works: dict[str, Work] = {}

    def turn(self, outcome: str, seconds: float) -> None:
        """Count one turn of one run."""
        with self._lock:
            self._turns[outcome] += 1
            self._turn_s.observe(seconds)

    def work(self, name: str, ending: str, seconds: float) -> None:
        """Count one piece of periodic work."""
        with self._lock:
            work = self._works.setdefault(name, Work())
            work.ended[ending] += 1
            work.seconds += seconds

    def turns(self) -> dict[str, int]:
        """Return how many turns ended how."""
        with self._lock:
            return dict(self._turns)

    def turn_buckets(self) -> tuple[list[tuple[str, float]], float]:
        """Return what turns took: cumulated counts by upper bound, and their sum in seconds."""
        with self._lock:
            return self._turn_s.buckets(), self._turn_s.total

    def works(self) -> dict[str, Work]:
        """Return each kind of periodic work that was ever due."""
        with self._lock:
            return {
                name: Work(dict(work.ended), work.seconds)
                for name, work in sorted(self._works.items())
            }
