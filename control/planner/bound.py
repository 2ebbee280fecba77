"""What no plan can beat: lower bounds on a step, each a sentence of why."""

from __future__ import annotations

from typing import NamedTuple

from control.planner.cost import Setting
from control.planner.scenario import Scenario


class Bound(NamedTuple):
    """Seconds that a step takes at least, and because of what."""

    step_s: float
    because: str


def lower_bound(scenario: Scenario) -> Bound:
    """Return the highest of the bounds that hold for every plan."""
    return max(_work(scenario), _one_micro_batch(scenario), key=lambda bound: bound.step_s)


def settings(scenario: Scenario) -> list[Setting]:
    """Return each combination of what all pipelines share, in the order in which it is tried."""
    return [
        Setting(b, schedule, zero, recompute, scenario.buckets[0])
        for b in scenario.micro_batches
        for schedule in scenario.schedules
        for recompute in scenario.recomputes
        for zero in scenario.zeros
    ]


def _work(s: Scenario) -> Bound:
    """All nodes compute all the time, each layer where it is cheapest for its node's speed."""
    best = min(
        s.global_batch / b * _per_micro_batch(s, b, 1 + s.bwd_mult + (not any_off))
        for b in s.micro_batches
        for any_off in [False in s.recomputes]
    )
    return Bound(best, "all nodes computing all the time need as long")


def _per_micro_batch(s: Scenario, b: int, factor: float) -> float:
    fwd = s.layers.fwd
    rate = 0.0
    for kind, count in zip(s.kinds, s.counts, strict=True):
        rate += count * float((fwd / (kind.t0 + b * fwd / kind.flops)).max())
    return factor * float(fwd.sum()) / rate


def _one_micro_batch(s: Scenario) -> Bound:
    """A micro-batch goes through all layers one after another, at best on the fastest nodes."""
    factor = 1 + s.bwd_mult + (0 if False in s.recomputes else 1)
    best = min(
        factor * sum(min(k.t0 + b * float(fwd) / k.flops for k in s.kinds) for fwd in s.layers.fwd)
        for b in s.micro_batches
    )
    return Bound(best, "one micro-batch needs as long through the fastest nodes")
