"""What no plan can beat: lower bounds on a step, each a sentence of why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from control.planner.scenario import Scenario
from trainmaster.cells import Recompute


class Bound(NamedTuple):
    """Seconds that a step takes at least, and because of what."""

    step_s: float
    because: str


def lower_bound(scenario: Scenario) -> Bound:
    """Return the highest of the bounds that hold for every plan."""
    return max(_work(scenario), _one_micro_batch(scenario), key=lambda bound: bound.step_s)


def _work(s: Scenario) -> Bound:
    """All nodes compute all the time, each layer where it is cheapest for its node's speed."""
    best = min(
        s.global_batch / b * per_micro_batch_s(s, s.counts, b, _least(s)) for b in s.micro_batches
    )
    return Bound(best, "all nodes computing all the time need as long")


def _least(s: Scenario) -> Recompute:
    """Return the recompute that costs least."""
    return min(s.recomputes, key=s.computed_again)


def per_micro_batch_s(s: Scenario, counts: Sequence[int], b: int, recompute: Recompute) -> float:
    """Return the seconds that so many nodes of each kind need per micro-batch at the least: each
    layer costs a node at least its share of the work that this node could do best. A layer so light
    that its time is lost beside the others' is none at which a node is best.
    """
    fwd, both = s.layers.fwd, s.seconds(b, recompute).both
    rate = 0.0
    for kind, count in enumerate(counts):
        if count:
            seconds = np.diff(both[kind])
            told = seconds > 0
            rate += count * float((fwd[told] / seconds[told]).max())
    return float(fwd.sum()) / rate


def _one_micro_batch(s: Scenario) -> Bound:
    """A micro-batch goes through all layers one after another, at best on the fastest nodes."""
    best = min(
        float(np.diff(s.seconds(b, _least(s)).both, axis=1).min(axis=0).sum())
        for b in s.micro_batches
    )
    return Bound(best, "one micro-batch needs as long through the fastest nodes")
