"""Figures of a stretch of a series: of all its points rather than of those of a chart. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from control.db.samples import chunks
from control.db.samples.segments import Segment
from control.db.samples.series import Series


@dataclass(frozen=True, slots=True)
class Figures:
    """What can be told of several stretches together from what is known of each.

    Attributes:
        count: of finite values; without one, the fields from `mean` on mean nothing.
        squares: the sum of squared distances from the mean.
    """

    count: int
    non_finite: int
    mean: float = 0.0
    squares: float = 0.0
    low: float = 0.0
    low_step: int = 0
    high: float = 0.0
    high_step: int = 0
    first: float = 0.0
    last: float = 0.0


def figures(series: Series) -> Figures:
    """Return the figures of all points of `series`."""
    finite = np.isfinite(series.values)
    non_finite = int(np.count_nonzero(~finite & ~chunks.missing(series.values)))
    values, steps = series.values[finite], series.steps[finite]
    if not len(values):
        return Figures(0, non_finite)
    least, greatest = int(np.argmin(values)), int(np.argmax(values))
    mean = float(np.mean(values))
    return Figures(
        len(values),
        non_finite,
        mean,
        float(np.sum((values - mean) ** 2)),
        float(values[least]),
        int(steps[least]),
        float(values[greatest]),
        int(steps[greatest]),
        float(values[0]),
        float(values[-1]),
    )


def together(stretches: Iterable[Figures]) -> dict[str, Any]:
    """Return the figures of stretches that follow each other, as an answer tells them.

    `count` is of finite values, `non_finite` of those measured to be NaN or infinite; `mean`, `std`
    (of the population), `min`, `max` with their steps, `first` and `last` are of finite ones, None
    where there is none.
    """
    known = list(stretches)
    non_finite = sum(each.non_finite for each in known)
    some = [each for each in known if each.count]
    if not some:
        names = ("mean", "std", "min", "min_step", "max", "max_step", "first", "last")
        return {"count": 0, "non_finite": non_finite, **dict.fromkeys(names)}
    count = sum(each.count for each in some)
    mean = sum(each.count * each.mean for each in some) / count
    squares = sum(each.squares + each.count * (each.mean - mean) ** 2 for each in some)
    low, high = min(some, key=lambda each: each.low), max(some, key=lambda each: each.high)
    return {
        "count": count,
        "non_finite": non_finite,
        "mean": mean,
        "std": float(np.sqrt(squares / count)),
        "min": low.low,
        "min_step": low.low_step,
        "max": high.high,
        "max_step": high.high_step,
        "first": some[0].first,
        "last": some[-1].last,
    }


def lies_on(series: Series, segments: Sequence[Segment]) -> NDArray[np.bool_]:
    """Return which points of `series` lie on `segments`."""
    on = np.zeros(len(series), np.bool_)
    for each in segments:
        on |= (
            (series.generations == each.generation)
            & (series.steps > each.after_step)
            & (series.steps <= each.last_step)
        )
    return on
