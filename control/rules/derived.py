"""Values that rules look at and nobody tells: computed from what ranks tell, and from the plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from control.rules.frame import Column
from trainmaster.metrics import RATIOS
from trainmaster.plan import Plan

SOURCES: Mapping[str, tuple[str, ...]] = {
    "utilization_of_plan_ratio": ("utilization_ratio",),
    "bubble_beyond_plan_ratio": ("bubble_ratio",),
    "data_wait_ratio": ("data_s", "step_time_s"),
}
"""Derived metric -> those that it is computed from."""

assert SOURCES.keys() == RATIOS.keys(), "each has its description and its sources"

NEEDS_PLAN = frozenset({"utilization_of_plan_ratio", "bubble_beyond_plan_ratio"})


def sources_of(metrics: Iterable[str]) -> tuple[str, ...]:
    """Return the metrics that are told, of which `metrics` are, or are computed."""
    found = (source for metric in metrics for source in SOURCES.get(metric, (metric,)))
    return tuple(dict.fromkeys(found))


def with_derived(
    columns: Mapping[str, Column], metrics: Iterable[str], planned_bubble: float | None
) -> dict[str, Column]:
    """Return the columns, and what of `metrics` can be computed from them."""
    found = dict(columns)
    for metric in metrics:
        sources = SOURCES.get(metric)
        if sources is None or metric in found or not all(each in columns for each in sources):
            continue
        if metric in NEEDS_PLAN and planned_bubble is None:
            continue
        found[metric] = _computed(metric, [columns[each] for each in sources], planned_bubble or 0)
    return found


def _computed(metric: str, sources: list[Column], planned_bubble: float) -> Column:
    first = sources[0]
    if metric == "utilization_of_plan_ratio":
        return Column(first.values / max(1.0 - planned_bubble, 1e-9), first.measured)
    if metric == "bubble_beyond_plan_ratio":
        return Column(first.values - planned_bubble, first.measured)
    whole = sources[1]
    measured = first.measured & whole.measured & (whole.values != 0)
    return Column(
        np.where(measured, first.values / np.where(measured, whole.values, 1), 0), measured
    )


def planned_bubble(plan: Plan) -> float:
    """Return the share of the step in which a rank is idle by plan: as the planner predicts, or
    (p - 1) / (m v + p - 1) for p places, m micro-batches and v stages to a place.
    """
    if plan.predicted.bubble_ratio is not None:
        return plan.predicted.bubble_ratio
    shares = []
    for pipeline in plan.pipelines:
        idle = max(len(pipeline.layers) // plan.virtual, 1) - 1
        shares.append(idle / (pipeline.micro_batches * plan.virtual + idle))
    return sum(shares) / len(shares)
