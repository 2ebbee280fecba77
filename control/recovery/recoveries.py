"""What failures cost: how long a run did not train after each, the steps that were lost, and how
often of which cause. Pure.

A recovery lasts from the end of the last step before the failure to the end of the first step after
it, by the ranks' clocks: what it took to notice, to decide, to start and to restore.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any

from control.snapshot import Attempt

AFTER_FAILURE = frozenset({"restart", "replan", "retry", "rollback", "fallback"})
"""Kinds of attempts that follow a failure."""

_BY_ITSELF = AFTER_FAILURE | {"degrade", "rebalance", "return"}


@dataclass(frozen=True, slots=True)
class Trained:
    """When an attempt ended its first and its last step."""

    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True)
class Recoveries:
    """The recoveries of a run, or of several.

    Attributes:
        by_cause: cause -> how many attempts began by themselves for it: death, hang, lost, memory,
            passing, rollback, fallback, degrade, rebalance, return.
        num_drills: how many of them followed a drill.
        lost_steps: steps that were done and had to be done again.
        times_s: how long each recovery took, seconds; of those that are over.
    """

    by_cause: Mapping[str, int] = field(default_factory=dict)
    num_drills: int = 0
    lost_steps: int = 0
    times_s: tuple[float, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as the API shows it."""
        return {
            "restarts": sum(self.by_cause.values()),
            "restarts_by_cause": dict(sorted(self.by_cause.items())),
            "drills": self.num_drills,
            "lost_steps": self.lost_steps,
            "recovered": len(self.times_s),
            "mttr_p50_s": percentile(self.times_s, 0.50),
            "mttr_p95_s": percentile(self.times_s, 0.95),
        }


def of_run(attempts: Sequence[Attempt], trained: Mapping[int, Trained]) -> Recoveries:
    """Return the recoveries of one run.

    Args:
        attempts: all, ascending.
        trained: generation -> when it trained, of those that did a step.
    """
    by_cause: dict[str, int] = {}
    num_drills = lost_steps = 0
    times_s = []
    down_at: datetime | None = None
    for before, attempt in pairwise(attempts):
        if attempt.cause_kind in _BY_ITSELF:
            cause = cause_of(before, attempt)
            by_cause[cause] = by_cause.get(cause, 0) + 1
            num_drills += bool((before.ended_by or {}).get("drill"))
        if attempt.cause_kind not in AFTER_FAILURE:
            down_at = None
            continue
        lost_steps += max(0, (before.last_step or 0) - attempt.resumed_from_step)
        if down_at is None:
            span = trained.get(before.generation)
            down_at = span.last_at if span is not None else before.started_at
        if attempt.generation in trained:
            up_at = trained[attempt.generation].first_at
            times_s.append(max(0.0, (up_at - down_at).total_seconds()))
            down_at = None
    return Recoveries(by_cause, num_drills, lost_steps, tuple(times_s))


def cause_of(before: Attempt, attempt: Attempt) -> str:
    """Return in one word why `attempt` followed the one before."""
    if attempt.cause_kind in {"restart", "replan", "retry"} and before.ended_by is not None:
        return str(before.ended_by["kind"])
    return "death" if attempt.cause_kind == "restart" else attempt.cause_kind


def together(found: Iterable[Recoveries]) -> Recoveries:
    """Return the recoveries of several runs as one."""
    by_cause: dict[str, int] = {}
    num_drills = lost_steps = 0
    times_s: list[float] = []
    for each in found:
        for cause, count in each.by_cause.items():
            by_cause[cause] = by_cause.get(cause, 0) + count
        num_drills += each.num_drills
        lost_steps += each.lost_steps
        times_s += each.times_s
    return Recoveries(by_cause, num_drills, lost_steps, tuple(times_s))


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the least value that `share` of all do not exceed; None of none."""
    ordered = sorted(values)
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else None
