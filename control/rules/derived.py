"""Values that rules look at and nobody tells: computed from what ranks tell, and from what is known
of the run beside that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from control.rules.frame import Column, Floats, Ints
from control.rules.trust import Trust
from trainmaster.metrics import RATIOS

SOURCES: Mapping[str, tuple[str, ...]] = {
    "utilization_of_plan_ratio": ("utilization_ratio",),
    "bubble_beyond_plan_ratio": ("bubble_ratio",),
    "data_wait_ratio": ("data_s", "step_time_s"),
    "link_saturation_ratio": ("bandwidth_bytes_per_s",),
    "trusted_lag_ratio": ("step_time_s",),
}
"""Derived metric -> those that it is computed from."""

assert SOURCES.keys() == RATIOS.keys(), "each has its description and its sources"


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a run beside what its ranks tell; None where it is not.

    Attributes:
        planned_bubble: the share of the step in which a rank is idle by plan.
        link_bytes_per_s: what the slowest link carries that the sums of gradients cross.
        trust: which checkpoints are trusted, and since when.
    """

    planned_bubble: float | None = None
    link_bytes_per_s: float | None = None
    trust: Trust | None = None

    def of(self, metric: str) -> float | None:
        """Return what `metric` cannot be computed without; 0 for those that need nothing."""
        if metric == "link_saturation_ratio":
            return self.link_bytes_per_s
        return 0.0 if metric == "data_wait_ratio" else self.planned_bubble


NOTHING_KNOWN = Known()


def sources_of(metrics: Iterable[str]) -> tuple[str, ...]:
    """Return the metrics that are told, of which `metrics` are, or are computed."""
    found = (source for metric in metrics for source in SOURCES.get(metric, (metric,)))
    return tuple(dict.fromkeys(found))


def with_derived(
    columns: Mapping[str, Column],
    metrics: Iterable[str],
    known: Known,
    steps: Ints,
    at: Floats,
) -> dict[str, Column]:
    """Return the columns, and what of `metrics` can be computed from them.

    Args:
        at: when each of the `steps` ended, in seconds since the epoch.
    """
    found = dict(columns)
    for metric in metrics:
        sources = SOURCES.get(metric)
        if sources is None or metric in found or not all(each in columns for each in sources):
            continue
        if metric == "trusted_lag_ratio":
            if known.trust is not None:
                found[metric] = _lag(columns[sources[0]], known.trust, steps, at)
            continue
        figure = known.of(metric)
        if figure is not None:
            found[metric] = _computed(metric, [columns[each] for each in sources], figure)
    return found


def _lag(told: Column, trust: Trust, steps: Ints, at: Floats) -> Column:
    """Return a value for each step that was told."""
    ratios, known = trust.lag_ratios(steps, at)
    return Column(np.broadcast_to(ratios, told.values.shape), told.measured & known)


def _computed(metric: str, sources: list[Column], figure: float) -> Column:
    first = sources[0]
    if metric == "utilization_of_plan_ratio":
        return Column(first.values / max(1.0 - figure, 1e-9), first.measured)
    if metric == "bubble_beyond_plan_ratio":
        return Column(first.values - figure, first.measured)
    if metric == "link_saturation_ratio":
        return Column(first.values / figure, first.measured)
    whole = sources[1]
    measured = first.measured & whole.measured & (whole.values != 0)
    return Column(
        np.where(measured, first.values / np.where(measured, whole.values, 1), 0), measured
    )
