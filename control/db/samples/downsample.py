"""Fewer points for a chart, chosen so that nothing a person would act on is lost. Pure.

The extremes of every stretch stay (min-max, which guarantees what LTTB only makes likely), the
first and the last point, and both ends of every run of NaN or of one infinity; where there are more
of these than a third of the points, the first and last of each kind and an even choice.
"""

from __future__ import annotations

import numpy as np
from tsdownsample import MinMaxDownsampler

from control.db.samples import chunks
from control.db.samples.chunks import Floats, Ints
from control.db.samples.series import Series


def thinned(series: Series, points: int) -> Series:
    """Return at most `points` points of `series` (at least 2), first and last included."""
    if len(series) <= points:
        return series
    finite = np.isfinite(series.values)
    bad = np.flatnonzero(~finite & ~chunks.missing(series.values))
    good = np.flatnonzero(finite)
    kept_bad = _ends_of_runs(series.values, bad, points // 3)
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


def _ends_of_runs(values: Floats, positions: Ints, budget: int) -> Ints:
    """Return, of the positions of what is not finite, the first and last of each stretch of
    neighbours of one kind; all where they fit in `budget`.
    """
    if len(positions) <= budget:
        return positions
    kinds = np.nan_to_num(np.sign(values[positions]), nan=0.0)
    breaks = np.flatnonzero((np.diff(positions) > 1) | (np.diff(kinds) != 0))
    ends = np.unique(
        np.concatenate([positions[:1], positions[breaks], positions[breaks + 1], positions[-1:]])
    )
    if len(ends) <= budget:
        return ends
    of_kinds = [positions[kinds == kind] for kind in (0.0, 1.0, -1.0)]
    first = np.unique(np.concatenate([each[[0, -1]] for each in of_kinds if len(each)]))[:budget]
    others = np.setdiff1d(ends, first)
    even = others[np.linspace(0, len(others) - 1, budget - len(first)).astype(np.int64)]
    return np.union1d(first, even)
