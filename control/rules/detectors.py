"""Detectors: one per condition and rule, each keeping what it has to know of the past, so that new
steps are judged by themselves. All members of a rule are judged at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from control.rules import signs
from control.rules.baseline import Baseline
from control.rules.comparing import BestPeer, OwnPast, ReplicaSpread
from control.rules.frame import Bools, Column, Floats, Frame, Ints
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


class Absent:
    """`missing_for`."""

    def __init__(self, condition: MissingFor, metric: str, num_members: int) -> None:
        self._metric = metric
        self._steps = condition.steps
        self._absence = Absence(num_members)

    def signs(self, frame: Frame, exempt: Bools) -> Signs:
        column = frame.column(self._metric)
        periods, since = self._absence.of(frame, column)
        bad = (periods >= self._steps) & ~exempt
        codes = signs.judged(column.measured | bad, bad, np.zeros_like(bad))
        found = signs.plain(frame, codes)
        return Signs(codes, np.where(bad, since, found.since), found.counts, found.bars)


class Absence:
    """For how long a value that was measured before has not been.

    It is counted in periods: what is told every tenth step is missing after twenty, not after two.
    """

    def __init__(self, num_members: int) -> None:
        self._missed = np.zeros(num_members, dtype=np.int64)
        self._period = np.ones(num_members, dtype=np.int64)
        self._since = np.zeros(num_members, dtype=np.int64)
        self._was_told = np.zeros(num_members, dtype=bool)

    def of(self, frame: Frame, column: Column) -> tuple[Ints, Ints]:
        """Return at each step how many periods have passed without a value, as a period ends; and
        the first step without one.
        """
        periods = np.zeros(column.measured.shape, dtype=np.int64)
        since = np.broadcast_to(frame.steps, periods.shape).copy()
        for member, measured in enumerate(column.measured):
            if len(measured):
                periods[member], since[member] = self._one(frame.steps, member, measured)
        return periods, since

    def _one(self, steps: Ints, member: int, measured: Bools) -> tuple[Ints, Ints]:
        places = np.arange(len(measured))
        told = np.flatnonzero(measured)
        last = np.maximum.accumulate(np.where(measured, places, -1))
        is_carried = last < 0
        missed = places - last + np.where(is_carried, self._missed[member], 0)
        # A period is the distance between the last two values.
        gaps = np.diff(told, prepend=-1 - self._missed[member])
        if len(gaps) and not self._was_told[member]:
            gaps[0] = 1
        known = np.concatenate([[self._period[member]], gaps])
        period = known[np.cumsum(measured)]
        missed[is_carried & ~self._was_told[member]] = 0
        first = np.minimum(last + 1, len(measured) - 1)
        carried = is_carried & (self._missed[member] > 0)
        since = np.where(carried, self._since[member], steps[first])
        self._missed[member], self._period[member] = missed[-1], period[-1]
        self._since[member] = since[-1]
        self._was_told[member] |= bool(len(told))
        ends = missed % period == 0
        return np.where(ends, missed // period, 0), since


class Repeated:
    """`frozen`."""

    def __init__(self, condition: Frozen, metric: str, num_members: int) -> None:
        self._metric = metric
        self._steps = condition.steps
        self._series = [_Repeats() for _ in range(num_members)]

    def signs(self, frame: Frame, exempt: Bools) -> Signs:
        column = frame.column(self._metric).without(exempt)
        codes = np.zeros(column.values.shape, dtype=np.int8)
        since = np.broadcast_to(frame.steps, codes.shape).copy()
        for member, series in enumerate(self._series):
            where = np.flatnonzero(column.finite[member])
            if len(where):
                length, begun, lively = series.add(column.values[member][where], frame.steps[where])
                bad = (length >= self._steps) & lively
                codes[member][where] = np.where(bad, signs.BAD, signs.GOOD)
                since[member][where] = np.where(bad, begun, frame.steps[where])
        found = signs.plain(frame, codes)
        return Signs(codes, since, found.counts, found.bars)


class _Repeats:
    """How often in a row the newest value of one series has repeated the one before."""

    def __init__(self) -> None:
        self._last = math.nan
        self._length = 0
        self._since = 0
        self._balance = 0  # changes less repeats, before the present row of repeats

    def add(self, values: Floats, steps: Ints) -> tuple[Ints, Ints, Bools]:
        """Return at each value the repeats in a row that end there, the step of the first of them,
        and whether the series changed more often than it repeated before.
        """
        before = np.concatenate([[self._last], values[:-1]])
        same = values == before
        places = np.arange(len(values))
        changed = np.maximum.accumulate(np.where(same, -1, places))
        is_carried = changed < 0
        length = places - changed + np.where(is_carried, self._length, 0)
        first = steps[np.minimum(changed + 1, len(values) - 1)]
        begun = np.where(is_carried & (self._length > 0), self._since, first)
        # The very first value is neither a change nor a repeat.
        moves = np.where(same, -1, np.where(np.isnan(before), 0, 1))
        total = self._balance - self._length + np.cumsum(moves)
        balance = np.where(is_carried, self._balance, total[changed])
        self._last, self._length = float(values[-1]), int(length[-1])
        self._since, self._balance = int(begun[-1]), int(balance[-1])
        return length, begun, balance > 0


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
