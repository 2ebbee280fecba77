"""A run as the control plane of values tells it: its samples are computed from its attempts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.control_content import at

RANK_METRICS = {
    "utilization_ratio": 0.8,
    "memory_used_ratio": 0.42,
    "bubble_ratio": 0.2,
    "latency_ms": 12.0,
    "bandwidth_bytes_per_s": 3.0e8,
    "step_time_s": 0.5,
    "compute_s": 0.3,
    "p2p_wait_s": 0.08,
    "allreduce_s": 0.05,
    "optimizer_s": 0.03,
    "data_s": 0.01,
    "checkpoint_stall_s": 0.005,
    "exposed_comm_ratio": 0.12,
}


@dataclass
class FakeRun:
    """A run whose samples are computed from its attempts: [(generation, first step, last step)]."""

    id: str
    name: str
    state: str = "running"
    version: int = 7
    target_steps: int = 400
    branches: list[tuple[int, int, int]] = field(default_factory=lambda: [(1, 1, 120)])
    non_finite_steps: frozenset[int] = frozenset()
    infinite_steps: frozenset[int] = frozenset()
    because: str = ""
    num_ranks: int = 4
    nodes: tuple[str, ...] = ("node-a",)
    tags: tuple[str, ...] = ()
    archived: bool = False

    @property
    def step(self) -> int:
        return self.branches[-1][2] if self.branches else 0

    def advance(self, steps: int = 1) -> None:
        generation, first, last = self.branches[-1]
        self.branches[-1] = (generation, first, min(self.target_steps, last + steps))

    def roll_back(self, step: int) -> None:
        self.branches.append((len(self.branches) + 1, step + 1, step + 1))

    def attempts(self) -> list[dict[str, Any]]:
        return [
            {
                "generation": generation,
                "parent_generation": generation - 1 if generation > 1 else None,
                "state": "running",
                "cause": "submitted" if generation == 1 else f"rollback to step {first - 1}",
                "first_step": first,
                "last_step": last,
                "started_at": at(300),
                "ended_at": None,
                "resumed_from_step": first - 1,
                "resumed_from_checkpoint": None,
                "skip": [],
                "lr_factor": None,
            }
            for generation, first, last in self.branches
        ]

    def document(self) -> dict[str, Any]:
        last = self.value("loss", self.step, 0) if self.step else None
        return {
            "id": self.id,
            "name": self.name,
            "version": self.version,
            "state": self.state,
            "desired": "running",
            "because": self.because,
            "step": self.step,
            "target_steps": self.target_steps,
            "generation": len(self.branches),
            "loss": last,
            "grad_norm": 0.81 if self.step else None,
            "tokens_per_s": 10432.7 if self.step else None,
            "skipped_steps": len(self.non_finite_steps),
            "tags": list(self.tags),
            "archived_at": at(60) if self.archived else None,
            "pace_s": 0.5 if self.step else None,
            "last_point_at": at(0.5) if self.step else None,
            "loss_curve": [
                [step, self.value("loss", step, 0)]
                for step in range(1, self.step, max(1, self.step // 40))
                if step not in self.non_finite_steps
            ],
            "productive_ratio": 0.93 if self.step else None,
            "state_since": at(120),
            "created_at": at(400),
            "started_at": at(300),
            "ended_at": None,
            "attempts": self.attempts(),
            "ranks": [
                {
                    "rank": rank,
                    "node": self.nodes[rank % len(self.nodes)],
                    "pid": 1000 + rank,
                    "stage": rank % 2,
                    "replica": rank // 2,
                    "tensor": 0,
                    "state": "ready",
                    "last_step": self.step,
                    "last_seen_at": at(0.5),
                    "exit_code": None,
                }
                for rank in range(self.num_ranks if self.step else 0)
            ],
            "spec": {"name": self.name, "workload": "worker.workloads.byte_gpt:workload"},
            "plan": {
                "micro_batch": 4,
                "schedule": "1f1b",
                "pipelines": [
                    {"layers": [4, 4], "micro_batches": 4, "nodes": ["node-a", "node-a"]}
                    for _ in range(2)
                ],
                "predicted": {"step_time_s": 0.118},
            },
            "checkpoint_interval": {"every_steps": 50, "from_step": 0, "because": ""},
            "workload": {
                "code_sha256": "c" * 64,
                "data_sha256": "d" * 64,
                "environment_sha256": "e" * 64,
                "environment": {"python": "CPython 3.11.2", "torch": "2.13.0"},
            },
            "goodput": {},
        }

    def value(self, metric: str, step: int, rank: int, generation: int = 1) -> Any:
        bad = step in self.non_finite_steps and generation == 1
        if metric in ("loss", "grad_norm") and bad:
            return "NaN"
        if metric == "loss" and step in self.infinite_steps:
            return "Infinity"
        if metric == "loss":
            swing = 0.05 * math.sin(step * generation)
            return 2.2 + 3.3 * math.exp(-step / 60) + swing + (generation == 1) * step / 1000
        if metric == "grad_norm":
            return 0.5 + 0.2 * abs(math.sin(step / 3))
        if metric == "lr":
            return 3e-4 * min(1.0, step / 40)
        if metric == "tokens_per_s":
            return 10000 + 500 * math.sin(step / 7)
        if metric == "non_finite":
            return 12 if bad else 0
        base = RANK_METRICS[metric]
        return base * (1 + 0.03 * rank + 0.05 * math.sin(step / 5 + rank))

    def points(self, metric: str, rank: int, *, everything: bool) -> list[list[Any]]:
        points = []
        for index, (generation, first, last) in enumerate(self.branches):
            later = [branch[1] - 1 for branch in self.branches[index + 1 :]]
            end = last if everything else min([last, *later])
            points += [
                [generation, step, self.value(metric, step, rank, generation)]
                for step in range(first, end + 1)
            ]
        return points
