"""The metrics that Trainmaster measures: one registry for spool, API, rules, charts and
Prometheus.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Scope = Literal["run", "rank"]
Reduce = Literal["same", "mean", "sum", "max", "min"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One measured quantity.

    Attributes:
        name: as in series, rules and charts; the unit is part of it.
        unit: for people.
        scope: "run" values are the same on every rank after the status all-reduce and are taken
            from rank 0; "rank" ones differ.
        reduce: how ranks become one run-level value.
        prometheus: exported name, or "" when it is not a gauge of its own.
    """

    name: str
    unit: str
    scope: Scope
    description: str
    reduce: Reduce = "mean"
    prometheus: str = ""


STEP_METRICS: tuple[Metric, ...] = (
    Metric(
        "loss",
        "nats",
        "run",
        "Mean loss of the step over its true weight, all replicas.",
        "same",
        "trainmaster_loss",
    ),
    Metric(
        "grad_norm",
        "1",
        "run",
        "Global gradient norm before clipping.",
        "same",
        "trainmaster_grad_norm",
    ),
    Metric(
        "lr", "1", "run", "Learning rate that the step used.", "same", "trainmaster_learning_rate"
    ),
    Metric(
        "applied", "1", "run", "1 if the update was applied, 0 if the step was skipped.", "same"
    ),
    Metric("non_finite", "count", "run", "Non-finite gradient and loss values, all ranks.", "same"),
    Metric("tokens", "count", "run", "Weight of the step: tokens or samples.", "same"),
    Metric("step_time_s", "s", "rank", "Wall time of the step.", "max"),
    Metric("compute_s", "s", "rank", "Time in forward and backward of micro-batches.", "mean"),
    Metric(
        "p2p_wait_s",
        "s",
        "rank",
        "Time waiting for activations and gradients of other stages.",
        "mean",
    ),
    Metric(
        "allreduce_s", "s", "rank", "Time in the gradient all-reduce that no compute hid.", "mean"
    ),
    Metric("allreduce_bytes", "bytes", "rank", "Bytes of gradients reduced.", "mean"),
    Metric("optimizer_s", "s", "rank", "Time in clipping and the optimizer.", "mean"),
    Metric("data_s", "s", "rank", "Time waiting for data.", "mean"),
    Metric("checkpoint_stall_s", "s", "rank", "Time that the step waited for a checkpoint.", "max"),
    Metric(
        "checkpoint_failures",
        "count",
        "rank",
        "Checkpoints in a row that failed, by the beginning of the step.",
        "max",
        "trainmaster_checkpoint_failures",
    ),
    Metric(
        "bubble_ratio",
        "1",
        "rank",
        "Share of the pipeline's span in which the rank did no forward or backward.",
        "mean",
        "trainmaster_pipeline_bubble_ratio",
    ),
    Metric(
        "utilization_ratio",
        "1",
        "rank",
        "Share of the step in which the device computed.",
        "mean",
        "trainmaster_device_utilization_ratio",
    ),
    Metric(
        "memory_used_ratio",
        "1",
        "rank",
        "Used share of the memory that the device, or the node for CPU ranks, has.",
        "max",
        "trainmaster_memory_used_ratio",
    ),
    Metric("memory_bytes", "bytes", "rank", "Memory that the rank uses.", "max"),
    Metric(
        "latency_ms",
        "ms",
        "rank",
        "Duration of one whole gradient synchronisation; the shortest over its group is the "
        "link's, the rest is waiting.",
        "min",
    ),
    Metric(
        "bandwidth_bytes_per_s",
        "bytes/s",
        "rank",
        "Bytes that a ring of replicas moves per rank to sum gradients, over its duration.",
        "mean",
        "trainmaster_link_bandwidth_bytes_per_second",
    ),
    Metric(
        "allreduce_hidden_s",
        "s",
        "rank",
        "Time in which gradients were under way while the pipeline still ran.",
        "mean",
    ),
    Metric(
        "exposed_comm_ratio",
        "1",
        "rank",
        "Share of the step in which the rank did nothing but communicate: waiting for messages of "
        "other stages, for gradients, weights and the status of others.",
        "mean",
        "trainmaster_exposed_communication_ratio",
    ),
    Metric(
        "idle_ratio",
        "1",
        "rank",
        "Share of the step in which the rank neither computed nor communicated: data, a "
        "checkpoint's copy, the host.",
        "mean",
        "trainmaster_idle_ratio",
    ),
)

BY_NAME = {metric.name: metric for metric in STEP_METRICS}
STEP_METRIC_NAMES = tuple(BY_NAME)

DERIVED = {
    "tokens_per_s": Metric("tokens_per_s", "1/s", "run", "tokens over the step time.", "same")
}
"""Run-level metrics computed from others when read."""

RATIOS = {
    "utilization_of_plan_ratio": Metric(
        "utilization_of_plan_ratio",
        "1",
        "rank",
        "Utilisation over what the plan leaves: utilization_ratio / (1 - planned bubble).",
        "mean",
    ),
    "bubble_beyond_plan_ratio": Metric(
        "bubble_beyond_plan_ratio",
        "1",
        "rank",
        "bubble_ratio less the bubble that is planned.",
        "mean",
    ),
    "data_wait_ratio": Metric(
        "data_wait_ratio", "1", "rank", "Share of the step spent waiting for data.", "mean"
    ),
    "link_saturation_ratio": Metric(
        "link_saturation_ratio",
        "1",
        "rank",
        "bandwidth_bytes_per_s over what the slowest link is known to carry that sums of gradients "
        "cross; nothing where no capacity is measured or stated.",
        "mean",
    ),
    "trusted_lag_ratio": Metric(
        "trusted_lag_ratio",
        "1",
        "run",
        "Steps since the newest trusted checkpoint, over the steps between two checkpoints and "
        "trust_after_steps: 1 is the most where all goes well.",
        "same",
    ),
}
"""Computed from others where rules look at them; no series of their own."""
