"""Ranks that make no progress though nothing died. Pure.

A run hangs when no rank has come on for longer than its steps ever take: five times the 95th
percentile that its own steps taught, and `FLOOR_S` at least. Only what agents in contact report
counts. Nothing is said of the first steps of a generation, and none of a run of which a rank is in
a part of its life whose duration cannot be learned: restoring, evaluating, saving, held.

Whoever waits for others is held up by them. The guilty rank is one that is frozen, else one that
computes or reads, else the one that is behind, else the one that has done nothing for longest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from control.liveness.leases import node_state
from control.snapshot import Attempt, Pulse, Rank, RunSnapshot, Sample, Stacks

FLOOR_S = 10.0
FACTOR = 5.0
FIRST_STEPS = 5
"""Steps of a generation that are no measure yet: caches fill, kernels are tuned."""

STACKS_WITHIN_S = 8.0
"""How long the stacks of stuck ranks are waited for before they are ended."""

_BLAME = ("compute", "data", "other")


@dataclass(frozen=True, slots=True)
class Limit:
    """How long steps may take without being called a hang, and the percentile behind it."""

    seconds: float
    p95_s: float

    def __str__(self) -> str:
        learned = f"5 x p95 = {FACTOR * self.p95_s:.3g} s"
        return learned if self.seconds > FLOOR_S else f"{learned}, at least {FLOOR_S:g} s"


@dataclass(frozen=True, slots=True)
class Hang:
    """A run that hangs, and which rank holds up the others."""

    rank: int
    step: int
    still_s: float
    limit: Limit
    how: str

    @property
    def cause(self) -> str:
        """The cause of the attempt's end."""
        return (
            f"rank {self.rank} hung at step {self.step} (no progress for {self.still_s:.1f} s; "
            f"{self.limit})"
        )


def learned_limit(window: Sequence[Sample], generation: int) -> Limit | None:
    """Return the limit that the steps of a generation taught; None before they are enough.

    Args:
        window: step times of the surviving lineage, seconds.
    """
    taken = sorted(
        sample.value
        for sample in window
        if sample.generation == generation
        and sample.value is not None
        and math.isfinite(sample.value)
    )
    if len(taken) < FIRST_STEPS:
        return None
    p95_s = taken[math.ceil(0.95 * len(taken)) - 1]
    return Limit(max(FLOOR_S, FACTOR * p95_s), p95_s)


def find(snapshot: RunSnapshot, attempt: Attempt, *, now: datetime) -> Hang | None:
    """Return the hang of a run whose ranks train; None while anybody comes on, or may."""
    limit = learned_limit(snapshot.windows.get("step_time_s", ()), attempt.generation)
    if limit is None:
        return None
    heard = [
        rank for rank in snapshot.ranks if rank.state != "exited" and is_heard(rank, snapshot, now)
    ]
    still = [(rank, rank.pulse) for rank in heard if rank.pulse is not None]
    if not still or len(still) < len(heard):
        return None
    if any(pulse.section != "step" and not pulse.frozen for _, pulse in still):
        return None
    if any(pulse.still_s < limit.seconds for _, pulse in still):
        return None
    rank, pulse = min(still, key=lambda each: guilt(each[1]))
    longest_s = max(pulse.still_s for _, pulse in still)
    return Hang(rank.rank, pulse.step, longest_s, limit, _how(pulse, still))


def stacks_are_in(call: Stacks, ranks: Sequence[Rank], *, now: datetime) -> bool:
    """Return whether the stacks that were called for have come, or are waited for no longer."""
    alive = {rank.rank for rank in ranks if rank.state != "exited"}
    wanted = alive if call.ranks is None else alive & set(call.ranks)
    return wanted <= call.told or now - call.asked_at >= timedelta(seconds=STACKS_WITHIN_S)


def is_heard(rank: Rank, snapshot: RunSnapshot, now: datetime) -> bool:
    """Return whether the node of a rank is in contact, so that what it tells of the rank is new."""
    node = snapshot.node(rank.node)
    return node is not None and (
        node_state(node, now=now, control_up_since=snapshot.control_up_since) == "present"
    )


def guilt(pulse: Pulse) -> tuple[object, ...]:
    """Return a key that sorts those first who hold up others."""
    is_at = _BLAME.index(pulse.activity) if pulse.activity in _BLAME else len(_BLAME)
    return (not pulse.frozen, is_at, pulse.step, -pulse.idle_s)


def _how(pulse: Pulse, still: Sequence[tuple[Rank, Pulse]]) -> str:
    """Return what tells this rank from the others, as a sentence."""
    if pulse.frozen:
        return "Its process is stopped, by a signal or a debugger."
    waiting = [rank.rank for rank, each in still if each.activity == "wait"]
    if pulse.activity == "wait":
        steps = ", ".join(f"{rank.rank} at step {each.step}" for rank, each in still)
        return (
            "All ranks wait for each other: a message was lost, or they disagree on what comes "
            f"next. Rank by rank: {steps}."
        )
    doing = {"compute": "computing", "data": "reading data"}.get(pulse.activity, "at work")
    others = ", ".join(map(str, waiting))
    return f"It has been {doing} for {pulse.idle_s:.1f} s" + (
        f" while rank {others} waited for others." if waiting else "."
    )
