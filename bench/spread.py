"""Figures with their spread. Standard library only: peers are driven from environments of their
own.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some repetitions, and between what they lie."""

    median: float
    low: float
    high: float
    repetitions: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values), len(values))

    def json(self) -> dict[str, Any]:
        """Return it for a JSON document."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Durations:
    """How long calls took, in microseconds."""

    calls: int
    p50_us: float
    p99_us: float
    max_us: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Durations:
        """Return what at least one call took."""
        ordered = sorted(seconds)
        last = len(ordered) - 1
        return cls(
            len(ordered),
            1e6 * ordered[last // 2],
            1e6 * ordered[min(last, int(0.99 * len(ordered)))],
            1e6 * ordered[last],
        )

    def json(self) -> dict[str, Any]:
        """Return it for a JSON document."""
        return asdict(self)


def merged(each: Sequence[Durations]) -> dict[str, Spread]:
    """Return the spread of repetitions, figure by figure."""
    return {
        name: Spread.of([getattr(one, name) for one in each])
        for name in ("p50_us", "p99_us", "max_us")
    }
