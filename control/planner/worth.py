"""What a plan is judged by: the time or the price of a step that counts, failures and checkpoints
included where their figures are told.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from control.planner.textbook import checkpoint_overhead, daly_interval_s

Objective = Literal["goodput", "price"]

_HALVINGS = 60


@dataclass(frozen=True, slots=True)
class Saving:
    """How often a plan saves and what that, and failures, cost it.

    Attributes:
        mtbf_s: between failures of any of its nodes.
        every_steps: steps from one checkpoint to the next.
        overhead: time lost to checkpoints and failures, over useful time.
    """

    mtbf_s: float
    every_steps: int
    overhead: float


@dataclass(frozen=True, slots=True)
class Worth:
    """What is to be least: seconds per useful step, or their price.

    Attributes:
        stall_s: for which a checkpoint stops all nodes.
        write_s: that it takes to be written, beside the steps.
        restart_s: from a failure until the steps go on.
        mtbf_s: of one node, per kind; infinite where none fails.
        price: of one node for a second, per kind.
    """

    objective: Objective
    stall_s: float
    write_s: float
    restart_s: float
    mtbf_s: tuple[float, ...]
    price: tuple[float, ...]

    def of(self, step_s: float, counts: Sequence[int]) -> float:
        """Return what a step of `step_s` on so many nodes of each kind is judged by."""
        if not math.isfinite(step_s):
            return math.inf
        saving = self.saving(step_s, counts)
        return step_s * (1 + (saving.overhead if saving else 0.0)) * self._rate(counts)

    def saving(self, step_s: float, counts: Sequence[int]) -> Saving | None:
        """Return how the plan saves; None where no node fails."""
        mtbf_s = self._mtbf_s(counts)
        if mtbf_s == math.inf:
            return None
        every = max(1, round(daly_interval_s(self.stall_s, mtbf_s) / step_s))
        # A checkpoint must have been written before the next one begins.
        every = max(every, math.ceil(self.write_s / step_s))
        overhead = self._overhead(every * step_s, mtbf_s)
        return Saving(mtbf_s, every, overhead)

    def least_factor(self, counts: Sequence[int]) -> float:
        """Return what a step's seconds are multiplied by at the least on these nodes."""
        mtbf_s = self._mtbf_s(counts)
        if mtbf_s == math.inf:
            return self._rate(counts)
        low, high = 1e-6 * mtbf_s, 2 * mtbf_s
        for _ in range(_HALVINGS):  # the overhead falls to its minimum and rises from there
            third = (high - low) / 3
            if self._overhead(low + third, mtbf_s) < self._overhead(high - third, mtbf_s):
                high -= third
            else:
                low += third
        return (1 + self._overhead((low + high) / 2, mtbf_s)) * self._rate(counts) * (1 - 1e-9)

    def _overhead(self, interval_s: float, mtbf_s: float) -> float:
        if (interval_s + self.stall_s + self.restart_s) / mtbf_s > 500:
            return math.inf
        return checkpoint_overhead(interval_s, self.stall_s, mtbf_s, self.restart_s)

    def _mtbf_s(self, counts: Sequence[int]) -> float:
        rate = sum(count / each for count, each in zip(counts, self.mtbf_s, strict=True))
        return 1 / rate if rate > 0 else math.inf

    def _rate(self, counts: Sequence[int]) -> float:
        if self.objective != "price":
            return 1.0
        return sum(count * each for count, each in zip(counts, self.price, strict=True))
