"""What an agent does next: assignments and what runs go in, actions come out. Pure.

Repeating is safe: an action whose effect is already seen is not asked for again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Literal

from trainmaster.wire import Assignment
from worker.launch import Inbox

FAILURE_GRACE_S = 0.3
"""How long the peers of a rank that failed may take to end by themselves and say how."""

Generation = tuple[str, int]
"""(run, generation)"""
RankKey = tuple[str, int, int]
"""(run, generation, rank)"""


@dataclass(frozen=True, slots=True)
class RankSeen:
    """A rank as this node knows it. One that has exited stays known, and is never started again.

    Attributes:
        failed: it exited with anything but code 0.
        exited_at: on the clock that `reconcile` is given as `now`.
    """

    slot: int
    phase: Literal["starting", "alive", "exited"]
    failed: bool = False
    exited_at: float | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """What runs on this node.

    Attributes:
        stores: address of each generation's store that lives here; None while it starts.
        inboxes: what was last written for each generation.
        stopping: generations whose ranks have been told to end.
    """

    nest_ready: bool
    ranks: Mapping[RankKey, RankSeen]
    stores: Mapping[Generation, str | None]
    inboxes: Mapping[Generation, Inbox]
    stopping: frozenset[Generation] = frozenset()


@dataclass(frozen=True, slots=True)
class HostStore:
    """Start the store of a generation."""

    run: str
    generation: int


@dataclass(frozen=True, slots=True)
class CloseStore:
    """End the store of a generation."""

    run: str
    generation: int


@dataclass(frozen=True, slots=True)
class WriteInbox:
    """Replace the inbox of a generation."""

    run: str
    generation: int
    inbox: Inbox


@dataclass(frozen=True, slots=True)
class StartRank:
    """Start one rank of an assignment."""

    assignment: Assignment
    rank: int
    slot: int


@dataclass(frozen=True, slots=True)
class StopGeneration:
    """End all ranks of a generation on this node: politely first, then not."""

    run: str
    generation: int
    because: str


Action = HostStore | CloseStore | WriteInbox | StartRank | StopGeneration


def reconcile(assignments: Iterable[Assignment], seen: Seen, *, now: float) -> list[Action]:
    """Return what brings this node nearer to `assignments`, in the order in which to do it.

    What is not assigned, or is superseded, is stopped. When a rank fails, the rest of its
    generation is stopped too, and that generation starts nothing more. Ranks start when their store
    is known, all older ranks of their run and all holders of their slot are dead.
    """
    wanted = _current(assignments, seen)
    actions: list[Action] = []
    for key in sorted(_living(seen)):
        because = _stop_reason(key, wanted, seen, now)
        if because is not None and key not in seen.stopping:
            actions.append(StopGeneration(*key, because))
    actions += [CloseStore(*key) for key in sorted(seen.stores) if key not in wanted]
    taken = {rank.slot for rank in seen.ranks.values() if rank.phase != "exited"}
    for key, assignment in sorted(wanted.items(), key=lambda item: item[0]):
        if key in seen.stopping or _failures(key, seen):
            continue
        inbox = merged_inbox(seen.inboxes.get(key), assignment)
        if inbox != seen.inboxes.get(key):
            actions.append(WriteInbox(*key, inbox))
        if seen.nest_ready:
            starts = _starts(assignment, seen, taken)
            taken |= {each.slot for each in starts if isinstance(each, StartRank)}
            actions += starts
    return actions


def waits(assignments: Iterable[Assignment], seen: Seen) -> bool:
    """Return whether this node can do nothing for some assignment until it hears more.

    A store's address is missing, or all ranks have exited and the generation is still assigned.
    """
    for (run, generation), assignment in _current(assignments, seen).items():
        phases = {
            rank.phase
            for (name, number, _), rank in seen.ranks.items()
            if (name, number) == (run, generation)
        }
        if phases == {"exited"} or (not phases and assignment.store is None):
            return True
    return False


def merged_inbox(before: Inbox | None, assignment: Assignment) -> Inbox:
    """Return all orders and drills of the generation so far: an assignment names only open ones."""
    orders = {order.seq: order for order in before.orders} if before else {}
    drills = {drill.id: drill for drill in before.drills} if before else {}
    orders |= {order.seq: order for order in assignment.orders}
    drills |= {drill.id: drill for drill in assignment.drills}
    return Inbox(
        orders=[orders[seq] for seq in sorted(orders)],
        drills=[drills[number] for number in sorted(drills)],
    )


def _current(assignments: Iterable[Assignment], seen: Seen) -> dict[Generation, Assignment]:
    """Keep the newest generation of each run, unless a newer one has already been seen here."""
    newest: dict[str, int] = {}
    for run, generation, _ in seen.ranks:
        newest[run] = max(newest.get(run, 0), generation)
    latest: dict[str, Assignment] = {}
    for assignment in assignments:
        if assignment.generation >= newest.get(assignment.run, 0):
            newest[assignment.run] = assignment.generation
            latest[assignment.run] = assignment
    return {(run, assignment.generation): assignment for run, assignment in latest.items()}


def _living(seen: Seen) -> set[Generation]:
    return {(run, gen) for (run, gen, _), rank in seen.ranks.items() if rank.phase != "exited"}


def _failures(key: Generation, seen: Seen) -> list[tuple[float, int]]:
    """Return (when, rank) of the failed ranks of a generation, first failure first."""
    return sorted(
        (rank.exited_at or 0.0, number)
        for (run, generation, number), rank in seen.ranks.items()
        if (run, generation) == key and rank.failed
    )


def _stop_reason(
    key: Generation, wanted: Mapping[Generation, Assignment], seen: Seen, now: float
) -> str | None:
    run, generation = key
    if key not in wanted:
        newer = [other for name, other in wanted if name == run and other > generation]
        return f"superseded by generation {newer[0]}" if newer else "no longer assigned"
    failures = _failures(key, seen)
    if failures and now - failures[0][0] >= FAILURE_GRACE_S:
        return f"rank {failures[0][1]} failed"
    return None


def _starts(assignment: Assignment, seen: Seen, taken: Set[int]) -> list[Action]:
    run, generation = assignment.run, assignment.generation
    known = {rank for name, number, rank in seen.ranks if (name, number) == (run, generation)}
    if assignment.hosts_store and not known and (run, generation) not in seen.stores:
        return [HostStore(run, generation)]
    if assignment.store is None:
        return []
    if any(name == run and number < generation for name, number in _living(seen)):
        return []
    return [
        StartRank(assignment, each.rank, each.slot)
        for each in sorted(assignment.ranks, key=lambda each: each.rank)
        if each.rank not in known and each.slot not in taken
    ]
