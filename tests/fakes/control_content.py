"""What the fake control plane tells: a fleet with a bit of everything."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

Json = dict[str, Any]


def at(seconds_ago: float = 0.0) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds_ago)).isoformat()


BEGAN = 1_790_000_000.0
"""When the fake runs began, in seconds since the epoch."""


def statistics(points: list[list[Any]]) -> Json:
    known = [(value, step) for _, step, value in points if isinstance(value, int | float)]
    values = [value for value, _ in known]
    least, greatest = min(known, default=(None, None)), max(known, default=(None, None))
    return {
        "count": len(known),
        "non_finite": sum(isinstance(point[2], str) for point in points),
        "mean": sum(values) / len(values) if values else None,
        "std": 0.1 if values else None,
        "min": least[0],
        "min_step": least[1],
        "max": greatest[0],
        "max_step": greatest[1],
        "first": values[0] if values else None,
        "last": values[-1] if values else None,
    }


def backtest(source: str) -> Json:
    return {
        "source": source,
        "steps": 190,
        "findings": [
            {
                "rule": "non_finite_gradient",
                "first_bad_step": 150,
                "fired_step": 152,
                "resolved_step": None,
                "severity": "critical",
                "action": "rollback",
                "because": "non_finite was above 0 three times within 20 steps",
            }
        ],
        "destructive": 1,
        "per_10k_steps": 52.6,
        "not_applicable": [],
        "not_applicable_because": {},
        "notes": [],
        "curve": {
            "metric": "non_finite",
            "lines": [
                {
                    "scope": "run",
                    "columns": {
                        "generation": [0] * 190,
                        "step": list(range(1, 191)),
                        "value": [12 if 150 <= step <= 152 else 0 for step in range(1, 191)],
                    },
                }
            ],
        },
    }


def rule_history(rules: list[Json], name: str) -> list[Json]:
    """Two versions: it was added as observing, and then set to what it is."""
    rule = next(each for each in rules if each["name"] == name)
    return [
        {
            "version": version,
            "change": change,
            "at": at(seconds_ago),
            "actor": actor,
            "why": why,
            "body": {**rule, "mode": mode},
        }
        for version, change, seconds_ago, actor, why, mode in [
            (1, "added", 900, "token:admin", "", "observe"),
            (2, "edited", 60, "token:operator", "tried on ten runs", rule["mode"]),
        ]
    ]


def events() -> list[Json]:
    return [
        {
            "id": index,
            "at": at(300 - index * 20),
            "run": "r1",
            "generation": 1 + (index > 8),
            "kind": kind,
            "actor": actor,
            "because": because,
            "data": data,
        }
        for index, (kind, actor, because, data) in enumerate(
            [
                ("run_submitted", "token:admin", "submitted by a person", {}),
                ("attempt_started", "control", "4 ranks on node-a", {}),
                ("checkpoint_committed", "control", "step 50", {}),
                ("checkpoint_trusted", "control", "20 healthy steps followed step 50", {}),
                ("alert_firing", "control", "non_finite at step 150, 3 times within 20", {}),
                (
                    "rule_acted",
                    "control",
                    "to step 100, skipping batches 150 to 152",
                    {"incident": "i1", "action": "rollback"},
                ),
            ]
        )
    ]


def checkpoints() -> list[Json]:
    return [
        {
            "id": f"r1-g{generation}-s{step}",
            "run": "r1",
            "step": step,
            "generation": generation,
            "parent": None,
            "state": state,
            "abandoned": abandoned,
            "bytes": 21_400_000,
            "files": 5,
            "location": f"file:///var/lib/trainmaster/checkpoints/r1/g{generation}-step{step}",
            "created_at": at(250 - step),
            "trusted_at": None,
            "manifest_sha256": "0" * 64,
            "pinned": step == 50,
            "because": because,
        }
        for generation, step, state, abandoned, because in [
            (1, 50, "trusted", False, "20 healthy steps followed"),
            (1, 100, "trusted", False, "20 healthy steps followed"),
            (1, 150, "quarantined", True, "its state proved sick"),
            (2, 180, "committed", False, ""),
        ]
    ]


def comparison(checkpoint: str, other: str) -> Json:
    """As a node tells it: four layers, of which the last moved most."""

    def distance(share: float, **more: Any) -> Json:
        return {
            "elements": 1000,
            "changed": 990,
            "not_finite": 0,
            "other_not_finite": 0,
            "norm": 12.5,
            "other_norm": 12.4,
            "difference_norm": 12.5 * share,
            "relative_difference": share,
            "largest_difference": share / 50,
            **more,
        }

    return {
        "state": "applied",
        "ok": True,
        "findings": [],
        "checkpoint": checkpoint,
        "other": other,
        "whole": distance(0.02),
        "layers": [
            *(distance(0.01 * layer, layer=layer, tensors=4) for layer in range(1, 4)),
            distance(0.11, layer=4, tensors=2),
            distance(0.0, layer=None, tensors=1),
        ],
        "tensors": [distance(0.11, name="layers.4.attn.q.weight", layer=4, shape=[20, 50])],
        "tensors_left_out": 0,
        "only_here": [],
        "only_there": ["layers.5.bias"],
        "unlike": [],
        "without_counterpart": 1,
    }


def alerts() -> list[Json]:
    return [
        {
            "rule": "non_finite_gradient",
            "run": "r1",
            "scope": "run",
            "state": "firing",
            "value": 12,
            "threshold": None,
            "first_bad_step": 150,
            "since": at(90),
            "severity": "critical",
            "incident": "i1",
        }
    ]


def incidents() -> list[Json]:
    return [
        {
            "id": "i1",
            "run": "r1",
            "opened_at": at(90),
            "closed_at": None,
            "state": "verifying",
            "rung": 1,
            "actions": [
                {
                    "action": "rollback",
                    "at": at(85),
                    "generation": 1,
                    "to_step": 100,
                    "skip": "150-152",
                    "rejected": [
                        {"checkpoint": "r1-g1-s150", "step": 150, "why": "is quarantined"}
                    ],
                }
            ],
            "verification": {
                "needed": 20,
                "healthy_steps": 12,
                "loss_band": [2.1, 2.9],
                "grad_norm_below": 1.6,
            },
            "mttr_s": None,
            "because": "three non-finite updates within 20 steps",
            "closed_as": None,
            "rule": "non_finite_gradient",
            "first_bad_step": 150,
            "proposed": None,
        },
        {
            "id": "i2",
            "run": "r1",
            "rule": "straggler",
            "opened_at": at(40),
            "closed_at": None,
            "state": "waiting",
            "rung": 0,
            "first_bad_step": 170,
            "actions": [],
            "verification": {},
            "mttr_s": None,
            "because": "rank 3 takes 1.8 times as long as the median. It asks whether to cordon.",
            "closed_as": None,
            "proposed": {
                "action": {"action": "cordon"},
                "because": "rank 3 takes 1.8 times as long as the median.",
                "at": at(40),
                "answer_by": at(-3600),
                "then": "dismiss",
            },
        },
    ]


def nodes() -> list[Json]:
    return [
        {
            "id": "node-a",
            "name": "node-a",
            "state": "present",
            "slots": 4,
            "devices": [{"kind": "cpu", "name": "2 cores", "memory_bytes": 24 << 30}],
            "profile": {"speed": 0.5, "links": {"node-b": {"latency_ms": 2.0, "mbps": 1000}}},
            "labels": {"room": "east"},
            "last_seen_at": at(0.4),
            "cordoned": False,
        },
        {
            "id": "node-b",
            "name": "node-b",
            "state": "lost",
            "slots": 2,
            "devices": [],
            "profile": {},
            "labels": {},
            "last_seen_at": at(400),
            "cordoned": True,
        },
    ]


def rules() -> list[Json]:
    return [
        {
            "name": "non_finite_gradient",
            "metric": "non_finite",
            "scope": "run",
            "when": {"condition": "above", "value": 0},
            "for": {"steps": 3, "within": 20},
            "severity": "critical",
            "mode": "act",
            "actions": [{"action": "rollback", "skip": True}, {"action": "stop"}],
            "enabled": True,
            "description": "Three skipped updates within 20 steps speak against the state.",
        },
        {
            "name": "utilisation_low",
            "metric": "utilization_ratio",
            "scope": "rank",
            "when": {"condition": "below", "value": 0.9},
            "for": {"seconds": 60},
            "severity": "warning",
            "mode": "observe",
            "actions": [],
            "enabled": False,
            "description": "A device waits more than it computes.",
        },
    ]


def timeline(step: int = 120, generation: int = 2) -> Json:
    """One step of two replicas, each of two stages that do four micro-batches under 1F1B."""
    order = [["F0", "F1", "B0", "F2", "B1", "F3", "B2", "B3"], ["F0", "B0", "F1", "B1"]]
    order[1] += ["F2", "B2", "F3", "B3"]
    starts = [[0, 1, 4, 6, 7, 9, 10, 13], [1, 2, 4, 5, 7, 8, 10, 11]]

    def actions(place: int, late: float) -> Json:
        rows = [
            ("forward" if name[0] == "F" else "backward", place, int(name[1:]), start)
            for name, start in zip(order[place], starts[place], strict=True)
        ]
        return {
            "kind": [row[0] for row in rows] + ["optimizer", "status"],
            "stage": [row[1] for row in rows] + [-1, -1],
            "number": [row[2] for row in rows] + [-1, -1],
            "start_s": [0.01 * (row[3] * (1 + late)) for row in rows] + [0.16, 0.17],
            "end_s": [
                0.01 * (row[3] * (1 + late) + (1 if row[0] == "forward" else 2)) for row in rows
            ]
            + [0.17, 0.172],
            "bytes": [0] * (len(rows) + 2),
        }

    summary = {
        "bubble_ratio": 0.24,
        "compute_ratio": 0.62,
        "optimizer_ratio": 0.06,
        "exposed_comm_ratio": 0.05,
        "idle_ratio": 0.03,
        "waited_unsent_s": 0.012,
        "waited_under_way_s": 0.001,
    }
    return {
        "run": "r1",
        "generation": generation,
        "step": step,
        "at": at(20),
        "length_s": 0.172,
        "missing_ranks": [],
        "clock_error_s": 4e-5,
        "ranks": [
            {
                "rank": rank,
                "replica": rank // 2,
                "place": rank % 2,
                "node": "node-a",
                "summary": summary,
                "actions": actions(rank % 2, 0.06 * (rank // 2)),
            }
            for rank in range(4)
        ],
        "planned": [
            {
                "replica": replica,
                "because": None,
                "ranks": [
                    {
                        "rank": 2 * replica + place,
                        "bubble_ratio": 0.2,
                        "actions": actions(place, 0.0),
                    }
                    for place in range(2)
                ],
            }
            for replica in range(2)
        ],
    }


def audit() -> list[Json]:
    rows = [
        ("run_submitted", "r1", ""),
        ("pause_requested", "r1", "lunch"),
        ("node_cordoned", "node-b", ""),
    ]
    return [
        {
            "id": place,
            "at": at(300 - place * 60),
            "actor": "token:operator",
            "action": action,
            "target": target,
            "why": why,
            "data": {},
        }
        for place, (action, target, why) in enumerate(rows, 1)
    ]


def channels() -> list[Json]:
    return [{"name": "team", "kind": "json", "least_severity": "warning", "default": True}]


def plan() -> Json:
    bars = [
        {
            "pipeline": 0,
            "stage": stage,
            "kind": kind,
            "micro_batch": number,
            "start_s": start,
            "end_s": start + 0.01,
        }
        for stage, kind, number, start in [
            (0, "F", 0, 0.0),
            (0, "F", 1, 0.01),
            (1, "F", 0, 0.01),
            (1, "B", 0, 0.02),
            (0, "B", 0, 0.03),
        ]
    ]
    return {
        "plan": {"micro_batch": 4, "pipelines": [{"nodes": ["fast", "slow"], "layers": [5, 3]}]},
        "step_time_s": 0.123,
        "samples_per_s": 260.0,
        "bubble_ratio": 0.21,
        "exposed_sync_ratio": 0.02,
        "lower_bound_s": 0.1,
        "exact": True,
        "warnings": [],
        "why": ["5 layers on fast and 3 on slow take equally long."],
        "rejected": [{"family": "even split", "step_time_s": 0.2, "because": "slow holds it up"}],
        "gantt": {"bars": bars},
    }
