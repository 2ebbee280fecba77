"""What may still be done without a person: counted from the attempts, so that nothing is kept in
memory. Pure.

A budget counts what was begun within the last 24 h and since a person last began an attempt:
whoever resumes or restores a run has looked at it. A restart that was followed by a new commit is
refunded.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from control.snapshot import Attempt, RunSnapshot

WINDOW = timedelta(hours=24)
TRIES_PER_CHECKPOINT = 3
NOT_OF_THE_STATE = frozenset({"passing", "lost", "moved"})
"""Kinds of ends that say nothing against a checkpoint: something was away, or the plan changed."""
RESTARTS = frozenset({"restart", "replan"})
BEGUN_BY_A_PERSON = frozenset({"start", "resume", "restore", "amend", "import"})


def unattended(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return the attempts that were begun without a person since one last began one."""
    found: list[Attempt] = []
    for attempt in reversed(attempts):
        if attempt.cause_kind in BEGUN_BY_A_PERSON:
            break
        found.append(attempt)
    return found[::-1]


def has_committed(attempt: Attempt) -> bool:
    """Return whether `attempt` committed a checkpoint of its own, beyond the one it began from."""
    committed = attempt.last_committed_step
    return committed is not None and committed > attempt.resumed_from_step


def restarts_spent(snapshot: RunSnapshot, *, now: datetime) -> int:
    """Return how many restarts count against `recovery.max_restarts`."""
    return sum(
        attempt.cause_kind in RESTARTS
        and attempt.started_at > now - WINDOW
        and not has_committed(attempt)
        for attempt in unattended(snapshot.attempts)
    )


def rollbacks_spent(snapshot: RunSnapshot, *, now: datetime) -> int:
    """Return how many rollbacks count against `recovery.max_rollbacks`."""
    return sum(
        attempt.cause_kind == "rollback" and attempt.started_at > now - WINDOW
        for attempt in unattended(snapshot.attempts)
    )


def rollbacks_left(snapshot: RunSnapshot, *, now: datetime) -> int:
    """Return how many more rollbacks `recovery.max_rollbacks` allows."""
    return max(0, snapshot.run.spec.recovery.max_rollbacks - rollbacks_spent(snapshot, now=now))


def restarts_without_progress(snapshot: RunSnapshot) -> int:
    """Return how many restarts have passed since a checkpoint was last committed."""
    count = 0
    for attempt in reversed(unattended(snapshot.attempts)):
        if has_committed(attempt):
            break
        count += attempt.cause_kind in RESTARTS
    return count


def tries(snapshot: RunSnapshot, checkpoint_id: str) -> int:
    """Return how often an attempt was begun from this checkpoint without a person, and may have
    ended because of it.
    """
    return sum(
        attempt.resumed_from_checkpoint == checkpoint_id
        and (attempt.ended_by or {}).get("kind") not in NOT_OF_THE_STATE
        for attempt in unattended(snapshot.attempts)
    )


def spent_on_restarts(snapshot: RunSnapshot, *, now: datetime) -> str | None:
    """Return which budget forbids one more restart, as a sentence; None if none does."""
    recovery = snapshot.run.spec.recovery
    idle = restarts_without_progress(snapshot)
    if idle >= recovery.no_progress_limit:
        return (
            f"The budget is spent: {idle} restarts in a row committed no further checkpoint "
            f"(recovery.no_progress_limit is {recovery.no_progress_limit})."
        )
    restarts = restarts_spent(snapshot, now=now)
    if restarts >= recovery.max_restarts:
        return (
            f"The budget is spent: restarts within 24 h: {restarts} "
            f"(recovery.max_restarts is {recovery.max_restarts})."
        )
    return None


def spent_on_rollbacks(snapshot: RunSnapshot, *, now: datetime) -> str | None:
    """Return which budget forbids one more rollback, as a sentence; None if none does."""
    allowed = snapshot.run.spec.recovery.max_rollbacks
    rollbacks = rollbacks_spent(snapshot, now=now)
    if rollbacks >= allowed:
        return (
            f"The budget is spent: rollbacks within 24 h: {rollbacks} "
            f"(recovery.max_rollbacks is {allowed})."
        )
    return None
