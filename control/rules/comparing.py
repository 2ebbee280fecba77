"""Detectors that compare members with each other, or with their own best."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from control.rules import signs
from control.rules.frame import Bools, Column, Floats, Frame
from control.rules.signs import Signs
from trainmaster.conditions import RelativeToBestPeer, RelativeToOwnPast, SpreadOverReplicas


class ReplicaSpread:
    """`spread_over_replicas`."""

    def __init__(self, condition: SpreadOverReplicas, metric: str, num_members: int) -> None:
        self._metric = metric
        self._above = condition.above

    def signs(self, frame: Frame, exempt: Bools) -> Signs:
        column = frame.ranks.get(self._metric)
        if column is None or len(set(frame.replicas)) < 2:
            return signs.plain(frame, np.zeros((len(frame.members), len(frame)), dtype=np.int8))
        means = _by_group(column.without(exempt), frame.replicas)
        known = np.logical_and.reduce(np.isfinite(means), axis=0, keepdims=True)
        with np.errstate(invalid="ignore"):
            middle = np.abs(np.median(means, axis=0, keepdims=True))
            apart = means.max(axis=0, keepdims=True) - means.min(axis=0, keepdims=True)
        sick = np.logical_or.reduce(column.sick, axis=0, keepdims=True)
        codes = signs.judged(known, apart > self._above * middle, sick)
        return signs.plain(frame, codes, np.full(len(frame.members), self._above))


def _by_group(column: Column, groups: tuple[int, ...]) -> Floats:
    """Return the mean of each group's finite values; NaN where there is none."""
    of_group = np.array(groups)
    found = []
    for group in sorted(set(groups)):
        finite = column.finite[of_group == group]
        total = np.where(finite, column.values[of_group == group], 0.0).sum(axis=0)
        count = finite.sum(axis=0)
        found.append(np.where(count > 0, total / np.maximum(count, 1), math.nan))
    return np.stack(found)


MAD_TO_SIGMA = 1.4826
"""The sigma of a normal distribution over its median distance from the median."""

MEDIAN_ERROR = 1.2533
"""The standard error of a median of n values over sigma / sqrt(n)."""


class Levels:
    """The median of each member's last `window` finite values, at each step, and its standard
    error; NaN before there were so many.

    Args:
        with_errors: else all are 0, which takes half the time.
    """

    def __init__(self, window: int, num_members: int, *, with_errors: bool) -> None:
        self._window = window
        self._with_errors = with_errors
        self._past: list[Floats] = [np.empty(0) for _ in range(num_members)]
        self._newest = np.full((2, num_members), math.nan)

    def of(self, column: Column) -> tuple[Floats, Floats]:
        """Return levels and errors, both (members, steps)."""
        found = np.empty((2, *column.values.shape))
        for member, past in enumerate(self._past):
            finite = column.finite[member]
            values = np.concatenate([past, column.values[member][finite]])
            self._past[member] = values[len(values) - min(len(values), self._window - 1) :]
            told = np.full((2, int(finite.sum())), math.nan)
            if len(values) >= self._window:
                windows = np.lib.stride_tricks.sliding_window_view(values, self._window)
                medians = np.median(windows, axis=1)
                errors = self._errors(windows, medians)
                told[:, told.shape[1] - len(windows) :] = medians, errors
            # Where nothing was measured, the level is as it was.
            place = np.cumsum(finite)
            levels = np.concatenate([self._newest[:, [member]], told], axis=1)
            found[:, member] = levels[:, place]
            self._newest[:, member] = levels[:, -1]
        return found[0], found[1]

    def _errors(self, windows: Floats, medians: Floats) -> Floats:
        if not self._with_errors:
            return np.zeros_like(medians)
        apart = np.median(np.abs(windows - medians[:, None]), axis=1)
        errors: Floats = MEDIAN_ERROR * MAD_TO_SIGMA * apart / math.sqrt(self._window)
        return errors


def _score(own: Floats, best: Floats, better: Literal["lower", "higher"]) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return best / own if better == "lower" else own / best


def _judged(
    frame: Frame,
    column: Column,
    condition: RelativeToBestPeer | RelativeToOwnPast,
    levels: Floats,
    best: Floats,
    errors: Floats,
) -> Signs:
    """Judge levels against the best; `errors`: of what lies between."""
    score = _score(levels, best, condition.better)
    known = column.finite & np.isfinite(score)
    with np.errstate(invalid="ignore"):
        slower = score < condition.below
        bad = slower & (np.abs(levels - best) > condition.sigmas * errors)
    codes = signs.judged(known, bad, column.sick, clear=~slower)
    return signs.plain(frame, codes, np.full(len(frame.members), condition.below))


class BestPeer:
    """`relative_to_best_peer`."""

    def __init__(self, condition: RelativeToBestPeer, metric: str, num_members: int) -> None:
        self._metric = metric
        self._condition = condition
        self._levels = Levels(condition.window, num_members, with_errors=condition.sigmas > 0)

    def signs(self, frame: Frame, exempt: Bools) -> Signs:
        column = frame.column(self._metric).without(exempt)
        levels, errors = self._levels.of(column)
        worst = math.inf if self._condition.better == "lower" else -math.inf
        pick = np.argmin if self._condition.better == "lower" else np.argmax
        peers = np.array(frame.peers) if frame.peers else np.zeros(len(frame.members))
        best = np.full(levels.shape, math.nan)
        of_best = np.zeros(levels.shape)
        for member in range(len(frame.members)):
            others = (peers == peers[member]) & (np.arange(len(peers)) != member)
            if others.any():
                known = np.where(np.isnan(levels[others]), worst, levels[others])
                place = pick(known, axis=0)[None]
                best[member] = np.take_along_axis(known, place, axis=0)[0]
                of_best[member] = np.take_along_axis(errors[others], place, axis=0)[0]
        return _judged(frame, column, self._condition, levels, best, np.hypot(errors, of_best))


class OwnPast:
    """`relative_to_own_past`."""

    def __init__(self, condition: RelativeToOwnPast, metric: str, num_members: int) -> None:
        self._metric = metric
        self._condition = condition
        self._levels = Levels(condition.window, num_members, with_errors=condition.sigmas > 0)
        self._best = np.full(num_members, math.nan)
        self._delayed: list[Floats] = [np.empty(0) for _ in range(num_members)]

    def signs(self, frame: Frame, exempt: Bools) -> Signs:
        column = frame.column(self._metric).without(exempt)
        levels, errors = self._levels.of(column)
        best = np.full(levels.shape, math.nan)
        keep = np.fmin if self._condition.better == "lower" else np.fmax
        for member in range(len(frame.members)):
            where = np.flatnonzero(column.finite[member])
            # A level is past once none of its values is in the present one.
            queue = np.concatenate([self._delayed[member], levels[member][where]])
            ready = queue[: max(0, len(queue) - self._condition.window)]
            self._delayed[member] = queue[len(ready) :]
            reached = keep.accumulate(np.concatenate([[self._best[member]], ready]))
            lag = len(where) - len(ready)
            best[member][where] = np.concatenate([np.full(lag, self._best[member]), reached[1:]])
            self._best[member] = reached[-1]
        return _judged(frame, column, self._condition, levels, best, errors)
