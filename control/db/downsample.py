"""Fewer points for a chart, chosen so that nothing a person would act on is lost. Pure.

Extremes of every stretch stay (min-max, which guarantees what LTTB only makes likely), and so do
the ends of every run of non-finite values.
"""

from __future__ import annotations

import numpy as np
from tsdownsample import MinMaxDownsampler

from control.db import chunks
from control.db.chunks import Floats, Ints
from control.db.series import Series


def thinned(series: Series, points: int) -> Series:
    """Return at most `points` points of `series` (at least 2), first and last included."""
    if len(series) <= points:
        return series
    finite = np.isfinite(series.values)
    bad = np.flatnonzero(~finite & ~chunks.missing(series.values))
    good = np.flatnonzero(finite)
    kept_bad = _ends_of_runs(bad, points // 4)
    budget = points - len(kept_bad) - 2
    kept_good = good if len(good) <= budget else good[_extremes(series.values[good], budget)]
    chosen = np.unique(np.concatenate([kept_bad, kept_good, [0, len(series) - 1]]))
    return Series(
        series.generations[chosen], series.steps[chosen], series.at[chosen], series.values[chosen]
    )


def _extremes(values: Floats, budget: int) -> Ints:
    even = budget - budget % 2
    if even == 0:
        return np.array([], dtype=np.int64)
    sampler = MinMaxDownsampler()  # type: ignore[no-untyped-call]
    chosen = sampler.downsample(np.ascontiguousarray(values), n_out=even)
    return np.asarray(chosen, dtype=np.int64)


def _ends_of_runs(positions: Ints, budget: int) -> Ints:
    """Return the first and last of each stretch of neighbouring positions, evenly thinned to
    `budget`.
    """
    if len(positions) <= budget:
        return positions
    breaks = np.flatnonzero(np.diff(positions) > 1)
    ends = np.unique(
        np.concatenate([positions[:1], positions[breaks], positions[breaks + 1], positions[-1:]])
    )
    if len(ends) <= budget:
        return ends
    return np.asarray(ends[np.linspace(0, len(ends) - 1, budget).astype(np.int64)])
