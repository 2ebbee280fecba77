"""What the fake control plane tells: a fleet with a bit of everything."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

Json = dict[str, Any]


def at(seconds_ago: float = 0.0) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds_ago)).isoformat()


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
    }


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
            "actions": [{"action": "rollback", "to_step": 100, "skip": "150-152"}],
            "verification": {"until_step": 172},
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
            "profile": {"speed": 0.5},
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
