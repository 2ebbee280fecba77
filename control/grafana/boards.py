"""The three boards: all runs, one run, and the hardware by kind of device. Pure.

`scripts/grafana_boards` writes them to `deploy/grafana/dashboards`; `control.grafana.publish` puts
the same ones into a Grafana that is named in the settings.
"""

from __future__ import annotations

from typing import Final

from control.grafana.panels import Board, Panel, Query, Variable

_RUN: Final = 'run="$run"'
_KIND_OF_NODE: Final = "max by (node, device_kind) (trainmaster_node_info)"


def _by_rank(metric: str) -> Query:
    return Query(f"{metric}{{{_RUN}}}", "rank {{rank}} on {{node}}")


def _quantile(share: float, histogram: str) -> Query:
    buckets = f"sum by (le) (rate({histogram}_bucket{{{_RUN}}}[2m]))"
    return Query(f"histogram_quantile({share}, {buckets})", f"p{round(share * 100)}")


def _by_kind(metric: str, how: str = "avg") -> Query:
    """A figure of ranks by the kind of device of their node; a node of several kinds counts for
    each.
    """
    joined = f"{_KIND_OF_NODE} * on (node) group_left () {how} by (node) ({metric})"
    return Query(f"{how} by (device_kind) ({joined})", "{{device_kind}}")


FLEET: Final = Board(
    uid="trainmaster-fleet",
    title="Trainmaster: fleet",
    description="All runs and nodes, and the control plane itself.",
    annotation_tags=("fleet",),
    panels=(
        Panel(
            "Runs by state",
            "How many runs are in each state.",
            [Query("sum by (state) (trainmaster_runs) > 0", "{{state}}")],
            kind="stat",
            unit="short",
        ),
        Panel(
            "Alerts",
            "Alerts that are pending or firing; the run's page tells their story.",
            [Query("sum by (state) (trainmaster_alerts)", "{{state}}")],
            kind="stat",
            unit="short",
            warn_above=1,
        ),
        Panel(
            "Tokens a second",
            "What each run trains; a run that stands still falls to 0.",
            [Query("sum by (run) (rate(trainmaster_tokens_total[1m]))", "{{run}}")],
            unit="ops",
            least=0,
        ),
        Panel(
            "Failed steps a minute",
            "Steps that were attempted and not applied.",
            [Query("sum by (run) (rate(trainmaster_failed_steps_total[5m])) * 60", "{{run}}")],
            unit="short",
            least=0,
        ),
        Panel(
            "Restarts in 24 hours",
            "Generations that a run began after its first; budgets end a run that only restarts.",
            [Query("sum by (run) (increase(trainmaster_restarts_total[24h]))", "{{run}}")],
            unit="short",
            least=0,
        ),
        Panel(
            "Age of the newest good checkpoint",
            "What would be lost if everything ended now.",
            [Query("max by (run) (trainmaster_checkpoint_age_seconds)", "{{run}}")],
            unit="s",
            least=0,
        ),
        Panel(
            "Nodes",
            "Nodes by state: present, late, lost.",
            [Query("sum by (state) (trainmaster_node_state)", "{{state}}")],
            unit="short",
            least=0,
        ),
        Panel(
            "Slots",
            "Places for ranks, and those that runs hold.",
            [
                Query("sum(trainmaster_node_slots)", "all"),
                Query("sum(trainmaster_node_slots_taken)", "taken"),
            ],
            unit="short",
            least=0,
        ),
        Panel(
            "Control plane: work put off",
            "Periodic work that was due while it still ran, and what the database refused.",
            [
                Query("rate(trainmaster_scheduler_skipped_total[5m])", "skipped at {{instance}}"),
                Query(
                    "sum by (kind) (rate(trainmaster_control_database_errors_total[5m]))",
                    "database: {{kind}}",
                ),
            ],
            unit="ops",
            least=0,
        ),
        Panel(
            "Control plane: oldest in each queue",
            "Runs that are due, requests of people, chores for nodes, notices to people.",
            [Query("max by (queue) (trainmaster_queue_oldest_seconds)", "{{queue}}")],
            unit="s",
            least=0,
            warn_above=30,
        ),
        Panel(
            "Control plane: turns a second",
            "Turns of runs by how they ended; unreadable and failed ones leave their run alone.",
            [Query("sum by (outcome) (rate(trainmaster_control_turns_total[5m]))", "{{outcome}}")],
            unit="ops",
            least=0,
        ),
        Panel(
            "Time since a node was heard",
            "A lease ends after ten seconds; silence alone restarts nothing.",
            [Query("trainmaster_node_last_seen_seconds", "{{node}}")],
            unit="s",
            least=0,
            warn_above=10,
        ),
    ),
)

RUN: Final = Board(
    uid="trainmaster-run",
    title="Trainmaster: run",
    description="One run: how it learns, how fast, and which rank holds it up.",
    annotation_tags=("run",),
    variables=(Variable("run", "Run", "label_values(trainmaster_run_state, run)"),),
    panels=(
        Panel(
            "State",
            "The state that the run is in.",
            [Query(f"trainmaster_run_state{{{_RUN}}} == 1", "{{state}}")],
            kind="stat",
            width=6,
            height=4,
        ),
        Panel(
            "Step",
            "The last step that every rank has ended.",
            [Query(f"min(trainmaster_step{{{_RUN}}})", "step")],
            kind="stat",
            unit="short",
            width=6,
            height=4,
        ),
        Panel(
            "Restarts",
            "Generations after the first.",
            [Query(f"max(trainmaster_restarts_total{{{_RUN}}})", "restarts")],
            kind="stat",
            unit="short",
            width=6,
            height=4,
        ),
        Panel(
            "Age of the newest good checkpoint",
            "What would be lost if the run ended now.",
            [Query(f"max(trainmaster_checkpoint_age_seconds{{{_RUN}}})", "age")],
            kind="stat",
            unit="s",
            width=6,
            height=4,
        ),
        Panel(
            "Loss",
            "Mean over the whole batch. A NaN is a gap here; the alerts above tell of it.",
            [Query(f"max(trainmaster_loss{{{_RUN}}})", "loss")],
        ),
        Panel(
            "Gradient norm",
            "Before clipping. It often rises before the loss does.",
            [Query(f"max(trainmaster_grad_norm{{{_RUN}}})", "gradient norm")],
            is_log=True,
        ),
        Panel(
            "Step time",
            "Median and 95th percentile over ranks.",
            [
                _quantile(0.5, "trainmaster_step_duration_seconds"),
                _quantile(0.95, "trainmaster_step_duration_seconds"),
            ],
            unit="s",
            least=0,
        ),
        Panel(
            "Tokens a second",
            "Of all ranks together.",
            [Query(f"sum(rate(trainmaster_tokens_total{{{_RUN}}}[1m]))", "tokens/s")],
            unit="ops",
            least=0,
        ),
        Panel(
            "Device utilisation by rank",
            "Share of the step in which the device computed.",
            [_by_rank("trainmaster_device_utilization_ratio")],
            unit="percentunit",
            least=0,
            most=1,
        ),
        Panel(
            "Pipeline bubble by rank",
            "Share of the pipeline's span in which the rank did not compute.",
            [_by_rank("trainmaster_pipeline_bubble_ratio")],
            unit="percentunit",
            least=0,
            most=1,
        ),
        Panel(
            "Memory by rank",
            "Used share of the device's memory.",
            [_by_rank("trainmaster_memory_used_ratio")],
            unit="percentunit",
            least=0,
            most=1,
            warn_above=0.9,
        ),
        Panel(
            "Collectives",
            "95th percentile of the duration of each kind of operation.",
            [
                Query(
                    "histogram_quantile(0.95, sum by (le, op) "
                    f"(rate(trainmaster_collective_duration_seconds_bucket{{{_RUN}}}[2m])))",
                    "{{op}}",
                )
            ],
            unit="s",
            least=0,
        ),
        Panel(
            "Link bandwidth by rank",
            "Bytes a second that a rank moved while gradients were summed.",
            [_by_rank("trainmaster_link_bandwidth_bytes_per_second")],
            unit="Bps",
            least=0,
        ),
        Panel(
            "Checkpoint stall",
            "95th percentile of the time that a step waited for a checkpoint.",
            [_quantile(0.95, "trainmaster_checkpoint_stall_seconds")],
            unit="s",
            least=0,
        ),
    ),
)

HARDWARE: Final = Board(
    uid="trainmaster-hardware",
    title="Trainmaster: hardware by kind of device",
    description="What each kind of device does, whatever runs on it.",
    annotation_tags=("fleet",),
    panels=(
        Panel(
            "Nodes by kind of device",
            "A node with devices of several kinds counts for each.",
            [Query(f"count by (device_kind) ({_KIND_OF_NODE})", "{{device_kind}}")],
            kind="stat",
            unit="short",
        ),
        Panel(
            "Slots by kind of device",
            "Places for ranks.",
            [_by_kind("trainmaster_node_slots", "sum")],
            kind="stat",
            unit="short",
        ),
        Panel(
            "Utilisation",
            "Mean over the ranks of nodes of this kind.",
            [_by_kind("trainmaster_device_utilization_ratio")],
            unit="percentunit",
            least=0,
            most=1,
        ),
        Panel(
            "Memory",
            "The fullest rank of each kind.",
            [_by_kind("trainmaster_memory_used_ratio", "max")],
            unit="percentunit",
            least=0,
            most=1,
            warn_above=0.9,
        ),
        Panel(
            "Waiting in the pipeline",
            "Mean bubble: what a kind of device spends waiting for others.",
            [_by_kind("trainmaster_pipeline_bubble_ratio")],
            unit="percentunit",
            least=0,
            most=1,
        ),
        Panel(
            "Link bandwidth",
            "Mean over the ranks of nodes of this kind.",
            [_by_kind("trainmaster_link_bandwidth_bytes_per_second")],
            unit="Bps",
            least=0,
        ),
        Panel(
            "Link saturation",
            "Used share of what a link is known to carry; nothing without a calibration.",
            [_by_kind("trainmaster_link_saturation_ratio", "max")],
            unit="percentunit",
            least=0,
            most=1,
            warn_above=0.8,
        ),
        Panel(
            "CUDA devices: utilisation",
            "Mean share of time in which a kernel ran, as the driver says, whoever ran it.",
            [_by_kind("trainmaster_gpu_utilization_ratio")],
            unit="percentunit",
            least=0,
            most=1,
        ),
        Panel(
            "CUDA devices: memory",
            "The fullest device of each kind, by whomever it is used.",
            [
                _by_kind(
                    "trainmaster_gpu_memory_used_bytes / trainmaster_gpu_memory_bytes", how="max"
                )
            ],
            unit="percentunit",
            least=0,
            most=1,
            warn_above=0.95,
        ),
        Panel(
            "CUDA devices: temperature",
            "The hottest device of each kind; devices slow down when they are too hot.",
            [_by_kind("trainmaster_gpu_temperature_celsius", "max")],
            unit="celsius",
            least=0,
            warn_above=85,
        ),
        Panel(
            "CUDA devices: power",
            "What all devices of a kind draw together.",
            [_by_kind("trainmaster_gpu_power_watts", "sum")],
            unit="watt",
            least=0,
        ),
        Panel(
            "CUDA devices: errors",
            "Errors of memory and of the driver (XID) within an hour, by device.",
            [
                Query(
                    "increase(trainmaster_gpu_memory_errors_uncorrected_total[1h])",
                    "uncorrected: {{node}}, {{device}}",
                ),
                Query(
                    "increase(trainmaster_gpu_xid_errors_total[1h])", "XID: {{node}}, {{device}}"
                ),
            ],
            unit="short",
            least=0,
            warn_above=1,
        ),
        Panel(
            "CUDA devices: corrected memory errors",
            "Within an hour, by device; many of them foretell one that cannot be corrected.",
            [
                Query(
                    "increase(trainmaster_gpu_memory_errors_corrected_total[1h])",
                    "{{node}}, {{device}}",
                )
            ],
            unit="short",
            least=0,
        ),
        Panel(
            "Nodes that are silent",
            "Time since the last sync of each node.",
            [Query("trainmaster_node_last_seen_seconds > 3", "{{node}}")],
            unit="s",
            least=0,
        ),
    ),
)

BOARDS: Final = (FLEET, RUN, HARDWARE)
