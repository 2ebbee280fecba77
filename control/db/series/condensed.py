"""A long series as strides of steps: of each a few points that a chart could show, and the figures
of all. What of a window lies in whole strides is then told without reading what is stored. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from control.db.samples import chunks
from control.db.samples.downsample import thinned
from control.db.samples.segments import Segment
from control.db.samples.series import Series, concatenated, part_of
from control.db.samples.statistics import Figures, figures

STRIDE_STEPS = 4096
POINTS = 130
"""Of a stride, which is a point for every 32 steps."""


@dataclass(frozen=True, slots=True)
class Stride:
    """The steps from `number * STRIDE_STEPS + 1` on.

    Attributes:
        points: all of them, or those that a chart needs.
        total: how many there are.
    """

    points: Series
    total: int
    figures: Figures


@dataclass(frozen=True, slots=True)
class Cut:
    """A segment as the whole strides in it, and what lies before and after these.

    Attributes:
        strides: the numbers of the first one, and of that after the last.
    """

    before: Segment
    strides: tuple[int, int]
    after: Segment


def cut(segment: Segment, settled_step: int, least: int) -> Cut | None:
    """Return `segment` cut into strides up to `settled_step`; None where fewer than `least` lie
    in it.
    """
    first = -(-segment.after_step // STRIDE_STEPS)
    end = min(segment.last_step, settled_step) // STRIDE_STEPS
    if end - first < least:
        return None
    generation = segment.generation
    return Cut(
        Segment(generation, segment.after_step, first * STRIDE_STEPS),
        (first, end),
        Segment(generation, end * STRIDE_STEPS, segment.last_step),
    )


def condensed(series: Series, first: int, end: int) -> Iterator[Stride]:
    """Yield the strides from `first` up to but not with `end` of a series of one generation."""
    edges = np.arange(first, end + 1, dtype=np.int64) * STRIDE_STEPS
    places: list[int] = np.searchsorted(series.steps, edges, side="right").tolist()
    for low, high in pairwise(places):
        part = part_of(series, slice(low, high))
        yield Stride(_few(part), len(part), figures(part))


def _few(part: Series) -> Series:
    bad = ~np.isfinite(part.values) & ~chunks.missing(part.values)
    # More than a chart of a stride would keep: whoever thins the whole must see all of them.
    if np.count_nonzero(bad) > POINTS // 3:
        return part
    return thinned(part, POINTS)


def points_of(strides: Sequence[Stride]) -> Series:
    """Return the points of strides one after another."""
    return concatenated([each.points for each in strides])
