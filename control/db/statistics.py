"""Figures of a stretch of a series: of all its points rather than of those of a chart. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from control.db import chunks
from control.db.segments import Segment
from control.db.series import Series


def statistics(series: Series, segments: tuple[Segment, ...]) -> dict[str, Any]:
    """Return the figures of the points of `series` that lie on `segments`.

    `count` is of finite values, `non_finite` of those measured to be NaN or infinite; `mean`, `std`
    (of the population), `min`, `max` with their steps, `first` and `last` are of finite ones, None
    where there is none.
    """
    on = _on(series, segments)
    values, steps = series.values[on], series.steps[on]
    finite = np.isfinite(values)
    non_finite = int(np.count_nonzero(~finite & ~chunks.missing(values)))
    values, steps = values[finite], steps[finite]
    if not len(values):
        names = ("mean", "std", "min", "min_step", "max", "max_step", "first", "last")
        return {"count": 0, "non_finite": non_finite, **dict.fromkeys(names)}
    least, greatest = int(np.argmin(values)), int(np.argmax(values))
    return {
        "count": len(values),
        "non_finite": non_finite,
        "mean": float(np.mean(values)),
        "std": float(np.std(values)),
        "min": float(values[least]),
        "min_step": int(steps[least]),
        "max": float(values[greatest]),
        "max_step": int(steps[greatest]),
        "first": float(values[0]),
        "last": float(values[-1]),
    }


def _on(series: Series, segments: tuple[Segment, ...]) -> NDArray[np.bool_]:
    on = np.zeros(len(series), np.bool_)
    for each in segments:
        on |= (
            (series.generations == each.generation)
            & (series.steps > each.after_step)
            & (series.steps <= each.last_step)
        )
    return on
