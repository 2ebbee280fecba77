"""Values that are not told any more: for how long, and the condition `missing_for`."""

from __future__ import annotations

import numpy as np

from control.rules import signs
from control.rules.frame import Bools, Column, Frame, Ints
from control.rules.signs import Signs
from trainmaster.conditions import MissingFor


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
