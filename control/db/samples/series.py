"""One metric in reading order, and how what ranks told becomes one value a step. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from control.db.samples import chunks
from control.db.samples.chunks import Floats, Ints, Rows
from control.db.samples.segments import Segment
from trainmaster.metrics import BY_NAME, Reduce
from trainmaster.spool import MISSING

TOKENS_PER_S = "tokens_per_s"
SOURCES = {TOKENS_PER_S: ("tokens", "step_time_s")}

KINDS: tuple[Reduce, ...] = ("mean", "max", "min", "sum")
"""How ranks can become one value."""


@dataclass(frozen=True, slots=True)
class Series:
    """One metric: generation and step of each point, when it ended, and its value.

    Attributes:
        rolled_up: whether points of it were left out for ever when it grew old.
    """

    generations: Ints
    steps: Ints
    at: Floats
    values: Floats
    rolled_up: bool = False

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(frozen=True, slots=True)
class Told:
    """What is stored of one metric in one segment.

    Attributes:
        by_rank: the rows that each rank told, with the metric among their values.
        reduced: rows reduced over ranks when they were rolled up, with one column per kind; None
            where ranks are still reduced as they are read.
        rolled_up: the ranks whose rows are not all that they told.
    """

    by_rank: Mapping[int, Rows]
    reduced: Rows | None = None
    rolled_up: frozenset[int] = frozenset()


def is_same_on_ranks(metric: str) -> bool:
    """Return whether rank 0 speaks for all."""
    known = BY_NAME.get(metric)
    return known is not None and known.scope == "run"


def derive(
    metric: str,
    told: Mapping[str, Told],
    segment: Segment,
    *,
    rank: int | None,
    reduce: Reduce | None,
    complete_to: int | None,
) -> Series | None:
    """Return a metric in one segment: as told, or computed from what was; None where nothing was.

    Args:
        rank: that rank's values; None for the value of the run.
        reduce: how ranks become one value; None as the metric is registered.
        complete_to: the newest step that every rank has told; later ones are left out of a
            reduction. None when no more will be told.
    """
    if metric != TOKENS_PER_S:
        return _one(told[metric], metric, segment, rank, reduce, complete_to=complete_to)
    tokens = _one(told["tokens"], "tokens", segment, rank, None, complete_to=complete_to)
    spent = _one(told["step_time_s"], "step_time_s", segment, rank, "max", complete_to=complete_to)
    if tokens is None or spent is None:
        return None
    steps, at, taken, seconds = tokens.steps, tokens.at, tokens.values, spent.values
    if not np.array_equal(steps, spent.steps):
        steps, left, right = np.intersect1d(
            tokens.steps, spent.steps, assume_unique=True, return_indices=True
        )
        at, taken, seconds = at[left], taken[left], seconds[right]
    with np.errstate(divide="ignore", invalid="ignore"):
        values = taken / seconds
    values[chunks.missing(taken) | chunks.missing(seconds)] = MISSING
    return Series(
        np.full(len(steps), segment.generation),
        steps,
        at,
        values,
        tokens.rolled_up or spent.rolled_up,
    )


def _one(
    told: Told,
    metric: str,
    segment: Segment,
    rank: int | None,
    reduce: Reduce | None,
    *,
    complete_to: int | None,
) -> Series | None:
    if rank is None and is_same_on_ranks(metric):
        rank = 0
    if rank is not None:
        rows = told.by_rank.get(rank)
        if rows is None or len(rows.steps) == 0:
            return None
        return _series(
            segment, rows.steps, rows.at, rows.values[metric], rolled_up=rank in told.rolled_up
        )
    kind = reduce or BY_NAME[metric].reduce
    if told.reduced is not None:
        rows = told.reduced
        return _series(segment, rows.steps, rows.at, rows.values[kind], rolled_up=True)
    if not told.by_rank:
        return None
    steps, at, values = reduced(
        [(rows, rows.values[metric]) for rows in told.by_rank.values()], kind
    )
    if complete_to is not None:
        complete = np.searchsorted(steps, complete_to, side="right")
        steps, at, values = steps[:complete], at[:complete], values[:complete]
    return _series(segment, steps, at, values, rolled_up=bool(told.rolled_up))


def _series(
    segment: Segment, steps: Ints, at: Floats, values: Floats, *, rolled_up: bool
) -> Series:
    return Series(np.full(len(steps), segment.generation), steps, at, values, rolled_up)


def reduced(columns: Sequence[tuple[Rows, Floats]], kind: Reduce) -> tuple[Ints, Floats, Floats]:
    """Reduce over ranks, step by step: what was not measured does not count, a measured NaN
    does.
    """
    if len(columns) == 1:
        [(rows, values)] = columns
        return rows.steps, rows.at, values
    steps = together([rows.steps for rows, _ in columns])
    matrix = np.full((len(columns), len(steps)), MISSING)
    at = np.zeros(len(steps))
    for row, (rows, values) in zip(matrix, columns, strict=True):
        where = np.searchsorted(steps, rows.steps)
        row[where] = values
        at[where] = np.maximum(at[where], rows.at)
    unknown = chunks.missing(matrix)
    if kind in {"max", "min"}:
        filled = np.where(unknown, -np.inf if kind == "max" else np.inf, matrix)
        # maximum and minimum hand on a NaN; fmax would lose it.
        found = np.maximum.reduce(filled) if kind == "max" else np.minimum.reduce(filled)
    else:
        with np.errstate(invalid="ignore", divide="ignore"):
            found = np.where(unknown, 0.0, matrix).sum(axis=0)
            if kind != "sum":
                found = found / (~unknown).sum(axis=0)
    found[unknown.all(axis=0)] = MISSING
    return steps, at, found


def together(told: Sequence[Ints]) -> Ints:
    """Return the steps that any of several told, each of them ascending."""
    first = told[0]
    if all(np.array_equal(each, first) for each in told[1:]):
        return first
    # A stable sort merges what ascends; np.unique would put a million steps into a hash table.
    steps = np.sort(np.concatenate(told), kind="stable")
    return steps[np.diff(steps, prepend=steps[:1] - 1) > 0]


def part_of(series: Series, chosen: slice | NDArray[np.bool_]) -> Series:
    """Return the points that `chosen` takes."""
    return Series(
        series.generations[chosen],
        series.steps[chosen],
        series.at[chosen],
        series.values[chosen],
        series.rolled_up,
    )


def concatenated(parts: Sequence[Series]) -> Series:
    """Return the parts one after another."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        empty = np.array([], dtype=np.int64)
        return Series(empty, empty, np.array([]), np.array([]))
    return Series(
        np.concatenate([part.generations for part in parts]),
        np.concatenate([part.steps for part in parts]),
        np.concatenate([part.at for part in parts]),
        np.concatenate([part.values for part in parts]),
        any(part.rolled_up for part in parts),
    )
