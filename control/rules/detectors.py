"""Detectors: one per condition and rule, each keeping what it has to know of the past, so that new
steps are judged by themselves. All members of a rule are judged at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from control.rules import signs
from control.rules.absence import Absence, Absent
from control.rules.baseline import Baseline
from control.rules.comparing import BestPeer, OwnPast, ReplicaSpread
from control.rules.frame import Bools, Floats, Frame
from control.rules.repeats import Repeated
from control.rules.rolling import RollingMedian
from control.rules.signs import Signs
from trainmaster.conditions import (
    CUSTOM,
    Above,
    Age,
    AllOf,
    AnyOf,
    Below,
    Condition,
    Custom,
    FailedFraction,
    Frozen,
    LevelChange,
    MissingFor,
    NonFinite,
    RatioToMedian,
    RelativeToBestPeer,
    RelativeToOwnPast,
    RobustZ,
    SpreadOverReplicas,
)

MISSING_IS_SICK_AFTER = {"loss": 3}
"""Metric -> values in a row that were not measured and count as not finite."""


class Detector(Protocol):
    """Judges the steps of one frame after another."""

    def signs(self, frame: Frame, exempt: Bools) -> Signs:
        """Return the signs of `frame`.

        Args:
            exempt: (steps); where finite values are neither judged nor learned from.
        """
        ...


def build(condition: Condition, metric: str, num_members: int) -> Detector:
    """Return the detector of a condition of a rule on `metric`."""
    if isinstance(condition, AllOf | AnyOf):
        return Combined(condition, metric, num_members)
    return _BUILDERS[type(condition)](condition, condition.metric or metric, num_members)


class Combined:
    """All, or any, of others."""

    def __init__(self, condition: AllOf | AnyOf, metric: str, num_members: int) -> None:
        self._join = signs.all_of if isinstance(condition, AllOf) else signs.any_of
        self._parts = [build(each, metric, num_members) for each in condition.of]

    def signs(self, frame: Frame, exempt: Bools) -> Signs:
        return self._join([part.signs(frame, exempt) for part in self._parts])


class Bound:
    """`above` and `below`."""

    def __init__(self, condition: Above | Below, metric: str, num_members: int) -> None:
        self._metric = metric
        self._is_above = isinstance(condition, Above)
        self._value = condition.value
        self._clear = condition.clear

    def signs(self, frame: Frame, exempt: Bools) -> Signs:
        column = frame.column(self._metric).without(exempt)
        values, bound = column.values, self._value
        bad = values > bound if self._is_above else values < bound
        clear = None
        if self._clear is not None:
            clear = values <= self._clear if self._is_above else values >= self._clear
        codes = signs.judged(column.measured, bad, column.sick, clear)
        return signs.plain(frame, codes, np.full(len(frame.members), bound))


class Sickness:
    """`non_finite`."""

    def __init__(self, condition: NonFinite, metric: str, num_members: int) -> None:
        self._metric = metric
        self._patience = MISSING_IS_SICK_AFTER.get(metric)
        self._absence = Absence(num_members)

    def signs(self, frame: Frame, exempt: Bools) -> Signs:
        column = frame.column(self._metric)
        found = signs.plain(
            frame, signs.judged(column.measured, np.zeros_like(column.measured), column.sick)
        )
        if self._patience is None:
            return found
        periods, since = self._absence.of(frame, column)
        lost = periods >= self._patience
        codes = found.codes.copy()
        codes[lost] = signs.SICK
        counts = np.where(periods == self._patience, self._patience, 1)
        return Signs(codes, np.where(lost, since, found.since), counts, found.bars)


class AgainstPast:
    """`ratio_to_median`, `robust_z` and `level_change`: a value, or the median of the newest, and
    the baseline before it.
    """

    def __init__(
        self,
        metric: str,
        baselines: list[Baseline],
        clears: Callable[[Floats, Floats, Floats], Bools] | None,
        recent: list[RollingMedian] | None = None,
    ) -> None:
        self._metric = metric
        self._baselines = baselines
        self._clears = clears
        self._recent = recent

    def signs(self, frame: Frame, exempt: Bools) -> Signs:
        column = frame.column(self._metric).without(exempt)
        codes = np.zeros(column.values.shape, dtype=np.int8)
        bars = np.full(len(frame.members), math.nan)
        for member, baseline in enumerate(self._baselines):
            where = np.flatnonzero(column.finite[member])
            tested = entering = column.values[member][where]
            if self._recent is not None:
                tested, entering = self._recent[member].add(entering)
                where = where[len(where) - len(tested) :]
            with np.errstate(over="ignore"):  # a bound beyond all numbers bounds nothing
                known, bad, median, sigma = baseline.compare(tested, entering)
                clear = None if self._clears is None else self._clears(tested, median, sigma)
            codes[member][where] = signs.judged(known, bad, np.zeros_like(bad), clear)
            bars[member] = baseline.bar
        codes[column.sick] = signs.SICK
        return signs.plain(frame, codes, bars)


def _ratio(condition: RatioToMedian, metric: str, num_members: int) -> Detector:
    above, below, clear = condition.above, condition.below, condition.clear

    def bounds(median: Floats, sigma: Floats) -> tuple[Floats, Floats]:
        # A ratio to nothing, or to less, says nothing.
        says = median > 0
        low = np.where(says & (below is not None), (below or 0) * median, -math.inf)
        return low, np.where(says & (above is not None), (above or 0) * median, math.inf)

    def clears(values: Floats, median: Floats, sigma: Floats) -> Bools:
        assert clear is not None
        inside: Bools = values <= clear * median if above is not None else values >= clear * median
        return inside

    return AgainstPast(
        metric,
        [Baseline(condition.window, condition.min_samples, bounds) for _ in range(num_members)],
        clears if clear is not None else None,
    )


def _robust_z(condition: RobustZ, metric: str, num_members: int) -> Detector:
    def high(median: Floats, sigma: Floats, z: float) -> Floats:
        found: Floats = median + np.maximum(z * sigma, condition.least_ratio * np.abs(median))
        return found

    def bounds(median: Floats, sigma: Floats) -> tuple[Floats, Floats]:
        return np.full_like(median, -math.inf), high(median, sigma, condition.above)

    def clears(values: Floats, median: Floats, sigma: Floats) -> Bools:
        assert condition.clear is not None
        inside: Bools = values <= high(median, sigma, condition.clear)
        return inside

    return AgainstPast(
        metric,
        [Baseline(condition.window, condition.min_samples, bounds) for _ in range(num_members)],
        clears if condition.clear is not None else None,
    )


def _level_change(condition: LevelChange, metric: str, num_members: int) -> Detector:
    # The standard error of a median of n values is 1.2533 sigma / sqrt(n).
    error = condition.sigmas * 1.2533 / math.sqrt(condition.recent)

    def bounds(median: Floats, sigma: Floats) -> tuple[Floats, Floats]:
        off = np.maximum((condition.rise or condition.fall or 0.0) * np.abs(median), error * sigma)
        if condition.rise is not None:
            return np.full_like(median, -math.inf), median + off
        return median - off, np.full_like(median, math.inf)

    return AgainstPast(
        metric,
        [Baseline(condition.window, condition.min_samples, bounds) for _ in range(num_members)],
        None,
        [RollingMedian(condition.recent) for _ in range(num_members)],
    )


class TooOld:
    """`age`."""

    def __init__(self, condition: Age, metric: str, num_members: int) -> None:
        self._metric = metric
        self._above_s = condition.above_s
        self._newest_at = np.full(num_members, math.nan)

    def signs(self, frame: Frame, exempt: Bools) -> Signs:
        column = frame.column(self._metric)
        at = np.where(column.measured, frame.at, -math.inf)
        before = np.where(np.isnan(self._newest_at), -math.inf, self._newest_at)[:, None]
        newest = np.maximum.accumulate(np.concatenate([before, at], axis=1), axis=1)
        age = frame.at - newest[:, :-1]
        known = np.isfinite(newest[:, :-1]) & ~exempt
        self._newest_at = np.where(np.isfinite(newest[:, -1]), newest[:, -1], math.nan)
        codes = signs.judged(known, age > self._above_s, np.zeros_like(known))
        return signs.plain(frame, codes, np.full(len(frame.members), self._above_s))


class Failing:
    """`failed_fraction`."""

    def __init__(self, condition: FailedFraction, metric: str, num_members: int) -> None:
        self._condition = condition
        self._metric = metric
        self._past: list[Floats] = [np.empty(0) for _ in range(num_members)]

    def signs(self, frame: Frame, exempt: Bools) -> Signs:
        condition = self._condition
        column = frame.column(self._metric).without(exempt)
        codes = np.zeros(column.values.shape, dtype=np.int8)
        for member, past in enumerate(self._past):
            where = np.flatnonzero(column.finite[member])
            failed = np.concatenate([past, column.values[member][where] == 0.0])
            total = np.concatenate([[0.0], np.cumsum(failed)])
            last = np.arange(len(past) + 1, len(failed) + 1)
            first = np.maximum(last - condition.window, 0)
            count = total[last] - total[first]
            bad = (count > condition.above * (last - first)) & (count >= condition.at_least)
            codes[member][where] = np.where(bad, signs.BAD, signs.GOOD)
            self._past[member] = failed[-condition.window :]
        codes[column.sick] = signs.SICK
        return signs.plain(frame, codes, np.full(len(frame.members), condition.above))


class ThirdParty:
    """`custom`."""

    def __init__(self, condition: Custom, metric: str, num_members: int) -> None:
        self._metric = metric
        self._known = CUSTOM[condition.name]
        self._params = condition.params
        self._past: list[list[float | None]] = [[] for _ in range(num_members)]

    def signs(self, frame: Frame, exempt: Bools) -> Signs:
        column = frame.column(self._metric).without(exempt)
        codes = np.zeros(column.values.shape, dtype=np.int8)
        for member, past in enumerate(self._past):
            for at in range(len(frame)):
                measured = bool(column.measured[member, at])
                value = float(column.values[member, at])
                past.append(value if measured else None)
                del past[: -self._known.window]
                if column.finite[member, at]:
                    is_bad = self._known.is_bad(tuple(past), self._params)
                    if is_bad is not None:
                        codes[member, at] = signs.BAD if is_bad else signs.GOOD
        codes[column.sick] = signs.SICK
        return signs.plain(frame, codes)


_BUILDERS: dict[type, Callable[[Any, str, int], Detector]] = {
    Above: Bound,
    Below: Bound,
    NonFinite: Sickness,
    MissingFor: Absent,
    Frozen: Repeated,
    RatioToMedian: _ratio,
    RobustZ: _robust_z,
    LevelChange: _level_change,
    SpreadOverReplicas: ReplicaSpread,
    RelativeToBestPeer: BestPeer,
    RelativeToOwnPast: OwnPast,
    Age: TooOld,
    FailedFraction: Failing,
    Custom: ThirdParty,
}
