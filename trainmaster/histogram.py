"""Durations counted in buckets, as Prometheus reads them."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

SHORT_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds for work that should take milliseconds."""


@dataclass(slots=True)
class Histogram:
    """Counts of observations in buckets with upper bounds `bounds`, and beyond."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count one observation; one that is no number counts nowhere."""
        if value == value:
            self.counts[bisect_left(self.bounds, value)] += 1
            self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Return (upper bound, cumulated count) as Prometheus writes them."""
        names, cumulated = [*(str(bound) for bound in self.bounds), "+Inf"], 0
        found: list[tuple[str, float]] = []
        for name, count in zip(names, self.counts, strict=True):
            cumulated += count
            found.append((name, cumulated))
        return found
