"""Series as arrays, and which of their points lie on the surviving lineage.

Legend: shapes are [N] for N points; a point is (generation, step, value).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

_WORDS = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}
OPEN_END = 2**62
"""Last surviving step of a generation that nothing has superseded."""


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one metric in the order told.

    Attributes:
        generations: int32 [N].
        steps: int64 [N].
        values: float64 [N]; NaN where not measured as well as where measured to be NaN.
        measured: bool [N]; False where nothing was measured.
        at: float64 [N]; when each step ended, in seconds since the epoch; NaN where not told.
        tokens: float64 [N]; what had been taken in by then; NaN where not told.
        downsampled: whether the server chose these among more points.
    """

    generations: NDArray[np.int32]
    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    measured: NDArray[np.bool_]
    at: NDArray[np.float64]
    tokens: NDArray[np.float64]
    downsampled: bool = False

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Series:
        """Read a series as the API tells it in columns: generation, step, value."""
        columns = document.get("columns") or {}
        values = [_WORDS.get(value, value) for value in columns.get("value", ())]
        unknown = np.full(len(values), np.nan)
        return cls(
            np.asarray(columns.get("generation", ()), np.int32),
            np.asarray(columns.get("step", ()), np.int64),
            np.asarray([np.nan if value is None else value for value in values], np.float64),
            np.asarray([value is not None for value in values], np.bool_),
            np.asarray(columns.get("at", unknown), np.float64),
            np.asarray(columns.get("tokens", unknown), np.float64),
            bool(document.get("downsampled")),
        )

    def __len__(self) -> int:
        return len(self.steps)

    def where(self, chosen: NDArray[np.bool_]) -> Series:
        """Return the points that `chosen` marks."""
        return Series(
            self.generations[chosen],
            self.steps[chosen],
            self.values[chosen],
            self.measured[chosen],
            self.at[chosen],
            self.tokens[chosen],
            self.downsampled,
        )

    def followed_by(self, other: Series) -> Series:
        """Return these points and then those of `other`."""
        return Series(
            np.concatenate([self.generations, other.generations]),
            np.concatenate([self.steps, other.steps]),
            np.concatenate([self.values, other.values]),
            np.concatenate([self.measured, other.measured]),
            np.concatenate([self.at, other.at]),
            np.concatenate([self.tokens, other.tokens]),
            self.downsampled or other.downsampled,
        )

    def newest_step(self, generation: int) -> int | None:
        """Return the last step of `generation`, or None if no point is of it."""
        steps = self.steps[self.generations == generation]
        return int(steps.max()) if len(steps) else None

    def newest(self) -> float:
        """Return the last value that was measured and is finite, NaN where there is none."""
        finite = self.values[np.isfinite(self.values)]
        return float(finite[-1]) if len(finite) else float("nan")

    def with_values(self, values: NDArray[np.float64]) -> Series:
        """Return the same points with other values."""
        return replace(self, values=values)

    def scaled(self, factor: float) -> Series:
        """Return the same points with their values times `factor`."""
        return replace(self, values=self.values * factor)

    @property
    def non_finite(self) -> NDArray[np.bool_]:
        """Points measured to be NaN or infinite."""
        return self.measured & ~np.isfinite(self.values)


def lineage(attempts: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """Return, for each generation on the surviving lineage, the last of its steps that survives.

    The newest attempt survives whole; its parent up to the step from which it resumed, and so on.
    A generation that is not in the answer was abandoned as a whole.
    """
    by_generation = {int(attempt["generation"]): attempt for attempt in attempts}
    if not by_generation:
        return {}
    survivors: dict[int, int] = {}
    generation: int | None = max(by_generation)
    end = OPEN_END
    while generation is not None and generation in by_generation and generation not in survivors:
        survivors[generation] = end
        attempt = by_generation[generation]
        end = min(end, int(attempt.get("resumed_from_step") or 0))
        generation = attempt.get("parent_generation")
    return survivors


def surviving(series: Series, survivors: Mapping[int, int]) -> NDArray[np.bool_]:
    """Return bool [N]: which points lie on the surviving lineage (all, if none is known)."""
    if not survivors:
        return np.ones(len(series), np.bool_)
    alive = np.zeros(len(series), np.bool_)
    for generation, last in survivors.items():
        alive |= (series.generations == generation) & (series.steps <= last)
    return alive


def with_breaks(series: Series) -> Series:
    """Return the series with an unmeasured point wherever a line must not be drawn on.

    A line breaks between generations that do not follow each other step by step.
    """
    if len(series) < 2:
        return series
    turns = np.flatnonzero(
        (series.generations[1:] != series.generations[:-1])
        & (series.steps[1:] != series.steps[:-1] + 1)
    )
    at = turns + 1
    if not len(at):
        return series
    return Series(
        np.insert(series.generations, at, series.generations[turns]),
        np.insert(series.steps, at, series.steps[turns]),
        np.insert(series.values, at, np.nan),
        np.insert(series.measured, at, False),
        np.insert(series.at, at, series.at[turns]),
        np.insert(series.tokens, at, series.tokens[turns]),
        series.downsampled,
    )


def smoothed(series: Series, keep: float) -> Series:
    """Return the series as its moving average, in which each value keeps the share `keep` of those
    before it. What is not finite stays a gap, and does not count.
    """
    total = weight = 0.0
    values = series.values.copy()
    for place in np.flatnonzero(np.isfinite(values)).tolist():
        total = keep * total + (1.0 - keep) * float(values[place])
        weight = keep * weight + (1.0 - keep)
        values[place] = total / weight
    return replace(series, values=values)


def extent(all_series: Iterable[Series]) -> tuple[int, int] | None:
    """Return the first and the last step of several series; None if that is one step at most."""
    steps = [series.steps for series in all_series if len(series)]
    if not steps:
        return None
    first, last = min(int(each.min()) for each in steps), max(int(each.max()) for each in steps)
    return (first, last) if first < last else None
