"""A run in time for tests of the brain: decisions are taken, and applied as the database would."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from control.decide import decide
from control.decision import Decision
from control.lineage import surviving
from control.snapshot import (
    Alert,
    Attempt,
    Checkpoint,
    DrillStatus,
    Incident,
    OrderStatus,
    Rank,
    Request,
    RunSnapshot,
    Sample,
)
from tests.fakes.snapshots import NOW, change, checkpoint, windows, with_rank


class Ring:
    """A run in time: turns are taken and applied, and facts are told in between. Ranks are as
    obedient as the facts say.
    """

    def __init__(self, snapshot: RunSnapshot) -> None:
        self.snapshot = snapshot
        self.now = NOW
        self.decisions: list[Decision] = []

    def turn(self) -> Decision:
        """Take one turn."""
        decision = decide(self.snapshot, now=self.now)
        self.decisions.append(decision)
        self.snapshot = applied(self.snapshot, decision, self.now)
        return decision

    def settle(self, limit: int = 20) -> list[Decision]:
        """Take turns until one changes nothing; return those that changed something."""
        taken: list[Decision] = []
        for _ in range(limit):
            decision = self.turn()
            if not decision.changes_anything:
                return taken
            taken.append(decision)
        raise AssertionError(f"still changing after {limit} turns: {taken[-1]}")

    def tell(self, **changes: Any) -> None:
        """Change what is known."""
        self.snapshot = change(self.snapshot, **changes)

    def advance(self, seconds: float) -> None:
        """Let time pass; nodes stay in contact."""
        self.now += timedelta(seconds=seconds)
        self.tell(nodes=tuple(replace(each, last_seen_at=self.now) for each in self.snapshot.nodes))

    def ready(self) -> None:
        """Let the ranks of the newest attempt meet."""
        newest = self.snapshot.attempts[-1]
        self.tell(
            ranks=tuple(
                replace(each, state="ready", boot="boot-1") for each in self.snapshot.ranks
            ),
            attempts=(*self.snapshot.attempts[:-1], replace(newest, ready_at=self.now)),
        )

    def train(self, last_step: int, *, bad: Iterable[int] = ()) -> None:
        """Let the newest attempt train up to `last_step`; on its lineage steps have their values
        from who made them.
        """
        newest = self.snapshot.attempts[-1]
        first_step = (newest.last_step or newest.resumed_from_step) + 1
        added = windows(last_step, bad=bad, first_step=first_step, generation=newest.generation)
        kept = {metric: self.snapshot.windows.get(metric, ()) for metric in added}
        self.tell(
            windows={metric: (*kept[metric], *added[metric]) for metric in added},
            attempts=(
                *self.snapshot.attempts[:-1],
                replace(newest, first_step=newest.first_step or first_step, last_step=last_step),
            ),
        )

    def commit(self, step: int, **changes: Any) -> None:
        """Let the newest attempt commit a checkpoint."""
        newest = self.snapshot.attempts[-1]
        added = checkpoint(step, "committed", generation=newest.generation, **changes)
        self.tell(
            checkpoints=(*self.snapshot.checkpoints, added),
            attempts=(*self.snapshot.attempts[:-1], replace(newest, last_committed_step=step)),
        )

    def kill(self, number: int = 3, signal: int = 9) -> None:
        """Let a rank die by a signal; its peers lose it."""
        found = self.snapshot.ranks
        for each in found:
            if each.rank != number:
                found = with_rank(
                    found, each.rank, state="exited", exit_code=75, exited_at=self.now
                )
        killed = with_rank(found, number, state="exited", signal=signal, exited_at=self.now)
        self.tell(ranks=killed)


def applied(snapshot: RunSnapshot, decision: Decision, now: datetime) -> RunSnapshot:
    """Return the snapshot as the database would load it after it stored the decision."""
    run = snapshot.run
    run = replace(
        run,
        version=run.version + decision.changes_anything,
        state=decision.state or run.state,
        desired=decision.desired or run.desired,
        because=decision.because or run.because,
        code=run.code if decision.code is None else decision.code or None,
        spec=decision.spec or run.spec,
        generation=decision.new_attempt.generation if decision.new_attempt else run.generation,
    )
    attempts = list(snapshot.attempts)
    nodes = snapshot.nodes
    cordoned = {each.node for each in decision.cordons}
    nodes = tuple(replace(each, cordoned=each.cordoned or each.id in cordoned) for each in nodes)
    orders = snapshot.orders
    found_ranks = snapshot.ranks
    if decision.attempt_end is not None:
        end = decision.attempt_end
        attempts[-1] = replace(
            attempts[-1], ended_at=now, state=end.state, because=end.because, ended_by=end.ended_by
        )
        nodes = tuple(
            replace(each, taken=each.taken - each.held_here, held_here=frozenset())
            for each in nodes
        )
    if decision.new_attempt is not None:
        new = decision.new_attempt
        shared = {name: getattr(new, name) for name in Attempt.__slots__ if hasattr(new, name)}
        attempts.append(Attempt(**shared, state="starting", started_at=now))
        found_ranks = tuple(
            Rank(each.rank, each.node, each.slot, "assigned") for each in new.placements
        )
        orders = ()
        for home in {each.node for each in new.placements}:
            slots = frozenset(each.slot for each in new.placements if each.node == home)
            nodes = tuple(
                replace(each, taken=each.taken | slots, held_here=slots)
                if each.id == home
                else each
                for each in nodes
            )
    first_seq = max((each.seq for each in orders), default=0) + 1
    orders = (
        *orders,
        *(
            OrderStatus(
                first_seq + number, each.kind, each.args, "sent", request=each.request, sent_at=now
            )
            for number, each in enumerate(decision.orders)
        ),
    )
    after = replace(
        snapshot,
        run=run,
        attempts=tuple(attempts),
        ranks=found_ranks,
        nodes=nodes,
        orders=orders,
        requests=_requests(snapshot, decision),
        checkpoints=_checkpoints(snapshot, decision),
        alerts=_alerts(snapshot, decision, now),
        incidents=_incidents(snapshot, decision, now),
        num_incidents=snapshot.num_incidents
        + sum(each.id not in {old.id for old in snapshot.incidents} for each in decision.incidents),
        drills=(
            *snapshot.drills,
            *(
                DrillStatus(each.drill, each.generation or run.generation)
                for each in decision.drills
            ),
        ),
        describing=snapshot.describing or any(each.kind == "describe" for each in decision.chores),
    )
    return replace(after, windows=_on_lineage(after))


def _requests(snapshot: RunSnapshot, decision: Decision) -> tuple[Request, ...]:
    changes = {each.id: each for each in decision.requests}
    found = []
    for each in snapshot.requests:
        new = changes.get(each.id)
        if new is not None:
            each = replace(each, state=new.state, generation=new.generation)
        order = [order for order in decision.orders if order.request == each.id]
        found.append(replace(each, order_seq=1) if order else each)
    return tuple(each for each in found if each.state in {"pending", "accepted"})


def _checkpoints(snapshot: RunSnapshot, decision: Decision) -> tuple[Checkpoint, ...]:
    changes = {each.id: each for each in decision.checkpoints}
    reading = {each.args["checkpoint"] for each in decision.chores if each.kind == "verify"}
    found = []
    for each in snapshot.checkpoints:
        new = changes.get(each.id)
        if new is not None:
            each = replace(
                each,
                state=new.state or each.state,
                abandoned=each.abandoned if new.abandoned is None else new.abandoned,
                trusted_at=new.trusted_at or each.trusted_at,
            )
        found.append(replace(each, verifying=each.verifying or each.id in reading))
    return tuple(each for each in found if each.state != "retired")


def _alerts(snapshot: RunSnapshot, decision: Decision, now: datetime) -> tuple[Alert, ...]:
    found = {(each.rule, each.scope): each for each in snapshot.alerts}
    for new in decision.alerts:
        found[new.rule, new.scope] = Alert(
            id=len(found) + 1,
            rule=new.rule,
            scope=new.scope,
            state=new.state,
            since=now,
            first_bad_step=new.first_bad_step,
            value=new.value,
            threshold=new.threshold,
            severity=new.severity,
            incident=new.incident,
            generation=new.generation,
            flapping=new.flapping,
        )
    return tuple(found.values())


def _incidents(snapshot: RunSnapshot, decision: Decision, now: datetime) -> tuple[Incident, ...]:
    found = {each.id: each for each in snapshot.incidents}
    for new in decision.incidents:
        opened_at = found[new.id].opened_at if new.id in found else now
        found[new.id] = Incident(
            id=new.id,
            opened_at=opened_at,
            state=new.state,
            rule=new.rule,
            rung=new.rung,
            first_bad_step=new.first_bad_step,
            last_bad_step=new.last_bad_step,
            actions=new.actions,
            verification=new.verification,
            proposed=new.proposed,
        )
    return tuple(each for each in found.values() if each.state != "closed")


def _on_lineage(snapshot: RunSnapshot) -> dict[str, tuple[Sample, ...]]:
    lineage = surviving(snapshot)
    return {
        metric: tuple(each for each in found if each.step <= lineage.get(each.generation, -1))
        for metric, found in snapshot.windows.items()
    }
