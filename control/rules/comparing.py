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


class Levels:
    """The median of each member's last `window` finite values, at each step; NaN before there were
    so many.
    """

    def __init__(self, window: int, num_members: int) -> None:
        self._window = window
        self._past: list[Floats] = [np.empty(0) for _ in range(num_members)]
        self._newest = np.full(num_members, math.nan)

    def of(self, column: Column) -> Floats:
        found = np.empty(column.values.shape)
        for member, past in enumerate(self._past):
            finite = column.finite[member]
            values = np.concatenate([past, column.values[member][finite]])
            self._past[member] = values[len(values) - min(len(values), self._window - 1) :]
            medians = np.full(int(finite.sum()), math.nan)
            if len(values) >= self._window:
                windows = np.lib.stride_tricks.sliding_window_view(values, self._window)
                medians[len(medians) - len(windows) :] = np.median(windows, axis=1)
            # Where nothing was measured, the level is as it was.
            place = np.cumsum(finite)
            levels = np.concatenate([[self._newest[member]], medians])
            found[member] = levels[place]
            self._newest[member] = levels[-1]
        return found


def _score(own: Floats, best: Floats, better: Literal["lower", "higher"]) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return best / own if better == "lower" else own / best


def _judged(frame: Frame, column: Column, score: Floats, below: float) -> Signs:
    known = column.finite & np.isfinite(score)
    codes = signs.judged(known, score < below, column.sick)
    return signs.plain(frame, codes, np.full(len(frame.members), below))


class BestPeer:
    """`relative_to_best_peer`."""

    def __init__(self, condition: RelativeToBestPeer, metric: str, num_members: int) -> None:
        self._metric = metric
        self._condition = condition
        self._levels = Levels(condition.window, num_members)

    def signs(self, frame: Frame, exempt: Bools) -> Signs:
        column = frame.column(self._metric).without(exempt)
        levels = self._levels.of(column)
        worst = math.inf if self._condition.better == "lower" else -math.inf
        pick = np.min if self._condition.better == "lower" else np.max
        peers = np.array(frame.peers) if frame.peers else np.zeros(len(frame.members))
        score = np.full(levels.shape, math.nan)
        for member in range(len(frame.members)):
            others = (peers == peers[member]) & (np.arange(len(peers)) != member)
            if others.any():
                known = np.where(np.isnan(levels[others]), worst, levels[others])
                score[member] = _score(levels[member], pick(known, axis=0), self._condition.better)
        return _judged(frame, column, score, self._condition.below)


class OwnPast:
    """`relative_to_own_past`."""

    def __init__(self, condition: RelativeToOwnPast, metric: str, num_members: int) -> None:
        self._metric = metric
        self._condition = condition
        self._levels = Levels(condition.window, num_members)
        self._best = np.full(num_members, math.nan)
        self._delayed: list[Floats] = [np.empty(0) for _ in range(num_members)]

    def signs(self, frame: Frame, exempt: Bools) -> Signs:
        column = frame.column(self._metric).without(exempt)
        levels = self._levels.of(column)
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
        score = _score(levels, best, self._condition.better)
        return _judged(frame, column, score, self._condition.below)
