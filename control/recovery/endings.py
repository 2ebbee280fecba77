"""What kind of end an attempt had, and what follows from several in a row: a pause before the next,
a node that is not used again, a person who must look. Pure.

| kind | what | a restart | pauses before the next |
|---|---|---|---|
| passing | a store or a peer was away (exit 74, 75) | costs nothing | 1, 2, 4 ... 60 s |
| memory | memory ran out; twice at one place: a person must look | costs one | 0, 1, 2 ... 60 s |
| death, hang, lost | a rank died or hung, a node is gone | costs one | 0, 1, 2 ... 60 s |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from control.budgets import RESTARTS, has_committed, unattended
from control.liveness.exits import FirstFailure
from control.snapshot import Attempt, RunSnapshot
from trainmaster.errors import ExitCode

PASSING = frozenset({ExitCode.IO, ExitCode.TRY_AGAIN})
MAX_RETRIES = 20
"""Passing failures in a row without one more commit: about a quarter of an hour."""

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
START_STEPS = 1
"""An attempt that did no more steps ended at its start."""


@dataclass(frozen=True, slots=True)
class Ending:
    """What ended an attempt before its time: kinds passing, memory, death, hang, lost."""

    kind: str
    rank: int | None = None
    node: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as it is stored."""
        return asdict(self)


def of_failure(failure: FirstFailure, snapshot: RunSnapshot) -> Ending:
    """Return what kind of end a failure of a rank is."""
    kind = "death"
    if failure.is_out_of_memory:
        kind = "memory"
    elif failure.exit_code in PASSING:
        kind = "passing"
    return at_rank(kind, failure.rank, snapshot)


def at_rank(kind: str, rank: int, snapshot: RunSnapshot) -> Ending:
    """Return an end that came from one rank."""
    node = next((each.node for each in snapshot.ranks if each.rank == rank), None)
    return Ending(kind, rank, node)


def cause_kind(ended: Attempt) -> str:
    """Return of what kind the attempt is that follows one which ended before its time."""
    return "retry" if kind_of(ended) == "passing" else "restart"


def kind_of(attempt: Attempt) -> str | None:
    """Return what kind of end an attempt had; None while it lives, or if it ended as it should."""
    return None if attempt.ended_by is None else str(attempt.ended_by["kind"])


def not_before(snapshot: RunSnapshot) -> datetime | None:
    """Return when the attempt after a failed one may begin; None where nothing was too quick."""
    newest = snapshot.attempt
    if newest is None or newest.ended_at is None or newest.ended_by is None:
        return None
    begun = RESTARTS | {"retry"}
    tried = sum(attempt.cause_kind in begun for attempt in _fruitless(snapshot))
    doublings = tried if kind_of(newest) == "passing" else tried - 1
    if doublings < 0:
        return None
    pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**doublings)
    return newest.ended_at + timedelta(seconds=pause_s)


def spent_on_retries(snapshot: RunSnapshot) -> str | None:
    """Return why a passing failure is not waited out any longer, as a sentence; None if it is."""
    retries = sum(attempt.cause_kind == "retry" for attempt in _fruitless(snapshot))
    if retries < MAX_RETRIES:
        return None
    return (
        f"The budget is spent: {retries} attempts in a row ended by failures that should pass, and "
        "committed no further checkpoint."
    )


def suspect(snapshot: RunSnapshot, ending: Ending) -> str | None:
    """Return why the node of the attempt that ends now is to get no ranks any more: it failed twice
    in a row at the start, and no other node did. None if there is no such reason.
    """
    newest = snapshot.attempt
    if ending.node is None or ending.kind not in {"death", "hang"} or newest is None:
        return None
    if not ended_at_start(newest) or len(snapshot.attempts) < 2:
        return None
    at_start = []
    for attempt in reversed(snapshot.attempts[:-1]):
        if attempt.ended_by is None or not ended_at_start(attempt):
            break
        at_start.append(attempt)
    nodes = {attempt.ended_by["node"] for attempt in at_start if attempt.ended_by is not None}
    if nodes != {ending.node}:
        return None  # none before, or the same trouble elsewhere: then it is not the node's
    return (
        f"node {ending.node} failed at the start of generations {at_start[0].generation} and "
        f"{newest.generation} in a row (rank {ending.rank}), and no other node did"
    )


def ended_at_start(attempt: Attempt) -> bool:
    """Return whether an attempt did `START_STEPS` steps at most."""
    last_step = attempt.last_step or attempt.resumed_from_step
    return last_step - attempt.resumed_from_step <= START_STEPS


def ran_out_again(snapshot: RunSnapshot, ending: Ending) -> bool:
    """Return whether memory has run out at the same place as in the attempt before: at the same
    step. Which of the ranks that hold as much runs out first is chance.
    """
    if ending.kind != "memory" or len(snapshot.attempts) < 2:
        return False
    before, now = snapshot.attempts[-2:]
    steps = [each.last_step or each.resumed_from_step for each in (before, now)]
    return kind_of(before) == "memory" and abs(steps[0] - steps[1]) <= START_STEPS


def _fruitless(snapshot: RunSnapshot) -> Iterator[Attempt]:
    """Yield the newest attempts that ended before their time without one more commit, the living
    one included, newest first, as far as no person began one.
    """
    for attempt in reversed(snapshot.attempts):
        if has_committed(attempt) or (attempt.ended_at is not None and attempt.ended_by is None):
            return
        yield attempt
        if attempt not in unattended(snapshot.attempts):
            return
