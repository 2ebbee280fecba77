"""Values that are told again, to the bit: the condition `frozen`."""

from __future__ import annotations

import math

import numpy as np

from control.rules import signs
from control.rules.frame import Bools, Floats, Frame, Ints
from control.rules.signs import Signs
from trainmaster.conditions import Frozen


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
