"""Probation: whether an action helped, measured against how the run was before. Pure.

An action is on probation until `PROBATION_STEPS` healthy steps lie beyond the last bad one. A step
is healthy when its update was applied and its loss and gradient norm are finite, and besides:

- after numeric trouble, its loss lies inside the band of the pre-incident trend (median of the last
  `TREND_STEPS` good steps, give or take six sigmas or 15 %), and its gradient norm is less than
  twice its median then;
- after trouble with speed, its time is at most `SLOWER` times what the plan predicts, or else what
  it was before.

What has not passed after `OVERDUE_STEPS` did not help: the next rung follows.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from control.checkpoints.choice import NUMERIC_METRICS, unhealthy_steps
from control.lineage import newest_step
from control.snapshot import Incident, RunSnapshot, Sample
from trainmaster.rule import Rule

PROBATION_STEPS = 20
OVERDUE_STEPS = 100
TREND_STEPS = 64
LEAST_TREND_STEPS = 8
SLOWER = 1.1

SPEED_METRICS = frozenset(
    {
        "step_time_s",
        "tokens_per_s",
        "compute_s",
        "p2p_wait_s",
        "allreduce_s",
        "optimizer_s",
        "data_s",
        "latency_ms",
        "bandwidth_bytes_per_s",
        "utilization_ratio",
        "bubble_ratio",
    }
)


def terms(snapshot: RunSnapshot, rule: Rule | None, first_bad_step: int) -> dict[str, Any]:
    """Return what the steps to come are measured against, as `Incident.verification` keeps it."""
    found: dict[str, Any] = {"needed": PROBATION_STEPS, "measured_against": "finite, applied steps"}
    metrics = set(rule.metrics) if rule is not None else set()
    if metrics & NUMERIC_METRICS:
        found |= _numeric_terms(snapshot, first_bad_step)
    elif metrics & SPEED_METRICS:
        found |= _speed_terms(snapshot, first_bad_step)
    return found


def _numeric_terms(snapshot: RunSnapshot, first_bad_step: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    losses = _before(snapshot, "loss", first_bad_step)
    if len(losses) >= LEAST_TREND_STEPS:
        middle = statistics.median(losses)
        sigma = 1.4826 * statistics.median(abs(each - middle) for each in losses)
        half = max(6 * sigma, 0.15 * abs(middle))
        found["measured_against"] = "the pre-incident trend"
        found["loss_band"] = [middle - half, middle + half]
    norms = _before(snapshot, "grad_norm", first_bad_step)
    if len(norms) >= LEAST_TREND_STEPS:
        found["grad_norm_below"] = 2 * statistics.median(norms)
    return found


def _speed_terms(snapshot: RunSnapshot, first_bad_step: int) -> dict[str, Any]:
    attempt = snapshot.attempt
    predicted = attempt.plan.predicted if attempt is not None else None
    times = _before(snapshot, "step_time_s", first_bad_step)
    if predicted is not None and predicted.step_time_s:
        reference, against = predicted.step_time_s, "the plan's own prediction"
    elif len(times) >= LEAST_TREND_STEPS:
        reference, against = statistics.median(times), "the pre-incident level"
    else:
        return {}
    return {"measured_against": against, "step_time_at_most_s": SLOWER * reference}


def _before(snapshot: RunSnapshot, metric: str, step: int) -> list[float]:
    unhealthy = unhealthy_steps(snapshot)
    found = [
        sample.value
        for sample in snapshot.windows.get(metric, ())
        if sample.step < step
        and sample.step not in unhealthy
        and sample.value is not None
        and math.isfinite(sample.value)
    ]
    return found[-TREND_STEPS:]


def healthy_steps(snapshot: RunSnapshot, incident: Incident) -> int:
    """Return how many healthy steps lie beyond the last bad one of `incident`."""
    after, newest = incident.last_bad_step, newest_step(snapshot)
    sick = {step for step in unhealthy_steps(snapshot) if after < step <= newest}
    for metric, low, high in _bounds(incident.verification):
        sick |= {
            sample.step
            for sample in _beyond(snapshot.windows.get(metric, ()), after)
            if sample.value is not None and not low <= sample.value <= high
        }
    return newest - after - len(sick)


def _bounds(verification: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    found = []
    if verification.get("loss_band"):
        low, high = verification["loss_band"]
        found.append(("loss", float(low), float(high)))
    if verification.get("grad_norm_below"):
        found.append(("grad_norm", -math.inf, float(verification["grad_norm_below"])))
    if verification.get("step_time_at_most_s"):
        found.append(("step_time_s", -math.inf, float(verification["step_time_at_most_s"])))
    return found


def _beyond(window: Sequence[Sample], step: int) -> Sequence[Sample]:
    first = len(window)
    while first and window[first - 1].step > step:
        first -= 1
    return window[first:]


def is_overdue(snapshot: RunSnapshot, incident: Incident) -> bool:
    """Return whether the action has had its chance."""
    return newest_step(snapshot) - incident.last_bad_step >= OVERDUE_STEPS


def progress(snapshot: RunSnapshot, incident: Incident) -> dict[str, Any]:
    """Return how far the probation has come, to be kept with its terms."""
    return {
        "healthy_steps": healthy_steps(snapshot, incident),
        "from_step": incident.last_bad_step + 1,
        "to_step": newest_step(snapshot),
    }
