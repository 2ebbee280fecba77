"""Builds snapshots for tests of the brain, and applies decisions to them as the database would.

The cast: run *alpha* (2 replicas of 2 stages), nodes *oak* and *elm*, operator *ada*.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from control.decide import decide
from control.decision import Decision
from control.lineage import surviving
from control.rules import packs
from control.rules.judgement import Judgement
from control.rules.watching import judge_all
from control.snapshot import (
    Alert,
    Attempt,
    Checkpoint,
    DrillStatus,
    Incident,
    Node,
    OrderStatus,
    Rank,
    Request,
    Run,
    RunSnapshot,
    Sample,
)
from trainmaster.ids import checkpoint_id
from trainmaster.plan import ParallelAsk, Plan, resolve
from trainmaster.rule import Rule
from trainmaster.spec import RunSpec
from trainmaster.wire import WorkloadInfo

NOW = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)
RULES = packs.load("default")
WORKLOAD = WorkloadInfo(num_layers=8, num_parameters=1000, num_samples=10_000, code_sha256="c")


def spec(**changes: Any) -> RunSpec:
    """Return alpha's spec; `changes` replace whole sections."""
    return RunSpec.model_validate(
        {
            "name": "alpha",
            "workload": "worker.workloads.byte_gpt:workload",
            "train": {"steps": 400, "global_batch": 64},
            "parallel": {"replicas": 2, "stages": 2, "micro_batch": 8},
            "checkpoint": {"every_steps": 10},
            **changes,
        }
    )


def plan(**ask: Any) -> Plan:
    """Return a plan for alpha's model, as asked; 2 x 2 by default."""
    asked = ask or {"replicas": 2, "stages": 2, "micro_batch": 8}
    return resolve(ParallelAsk.model_validate(asked), num_layers=8, global_batch=64)


def node(name: str = "oak", slots: int = 4, *, silent_s: float = 0.5, **changes: Any) -> Node:
    """Return a node that was last heard `silent_s` ago."""
    heard_at = NOW - timedelta(seconds=silent_s)
    return replace(Node(name, slots, heard_at, boot="boot-1", address=name), **changes)


def checkpoint(
    step: int, state: str = "trusted", *, generation: int = 1, **changes: Any
) -> Checkpoint:
    """Return a checkpoint of alpha whose bytes have been read back."""
    found = Checkpoint(
        id=checkpoint_id("alpha", generation, step),
        generation=generation,
        step=step,
        state=state,
        location=f"file:///alpha/g{generation}-step{step}",
        manifest_sha256="sha256:" + "0" * 64,
        created_at=NOW - timedelta(hours=1) + timedelta(seconds=step),
        verified_at=NOW,
        trusted_at=NOW if state == "trusted" else None,
    )
    return replace(found, **changes)


def attempt(generation: int = 1, **changes: Any) -> Attempt:
    """Return an attempt of alpha on oak that is ready."""
    bare = plan()
    homes = [each.model_copy(update={"nodes": ("oak", "oak")}) for each in bare.pipelines]
    found = Attempt(
        generation=generation,
        parent_generation=None,
        state="running",
        cause="The first attempt.",
        cause_kind="start",
        plan=bare.model_copy(update={"pipelines": tuple(homes)}),
        started_at=NOW - timedelta(minutes=10),
        ready_at=NOW - timedelta(minutes=9),
        first_step=1,
        last_step=50,
    )
    return replace(found, **changes)


def ranks(
    count: int = 4, state: str = "ready", *, on: str = "oak", **changes: Any
) -> tuple[Rank, ...]:
    """Return the ranks of an attempt on one node."""
    return tuple(
        replace(Rank(number, on, number, state, pid=100 + number, boot="boot-1"), **changes)
        for number in range(count)
    )


def with_rank(found: Iterable[Rank], number: int, **changes: Any) -> tuple[Rank, ...]:
    """Return the ranks with one of them changed."""
    return tuple(replace(each, **changes) if each.rank == number else each for each in found)


def exited(
    found: Iterable[Rank], number: int, *, ago_s: float = 0.2, **changes: Any
) -> tuple[Rank, ...]:
    """Return the ranks with one that exited `ago_s` ago."""
    at = NOW - timedelta(seconds=ago_s)
    return with_rank(found, number, state="exited", exited_at=at, **changes)


def samples(
    values: Mapping[int, float | None] | Iterable[tuple[int, float | None]],
    *,
    generation: int = 1,
    step_time_s: float = 0.1,
) -> tuple[Sample, ...]:
    """Return samples of steps, the newest of which ended just now."""
    found = sorted(dict(values).items())
    last = found[-1][0] if found else 0
    return tuple(
        Sample(generation, step, NOW - timedelta(seconds=(last - step) * step_time_s), value)
        for step, value in found
    )


def evaluate(rule: Rule, found: Sequence[Sample]) -> Judgement:
    """Return what a rule on run-level values says of samples that nobody has looked at before."""
    [judgement] = judge_all(running(rules=(rule,), windows={rule.metric: tuple(found)}))
    return judgement


def windows(
    last_step: int, *, bad: Iterable[int] = (), first_step: int = 1, generation: int = 1
) -> dict[str, tuple[Sample, ...]]:
    """Return healthy windows up to `last_step`, with a gradient norm that is not finite at the
    `bad` steps.
    """
    steps = range(first_step, last_step + 1)
    bad = set(bad)
    return {
        "loss": samples(((step, 3.0) for step in steps), generation=generation),
        "grad_norm": samples(
            ((step, math.nan if step in bad else 1.0) for step in steps), generation=generation
        ),
        "applied": samples(
            ((step, 0.0 if step in bad else 1.0) for step in steps), generation=generation
        ),
    }


def request(kind: str, number: int = 1, state: str = "pending", **args: Any) -> Request:
    """Return what ada asks."""
    return Request(number, kind, args, "ada", "", state, NOW - timedelta(seconds=1))


def running(**changes: Any) -> RunSnapshot:
    """Return alpha at step 50 of its first attempt, with checkpoints at 10, 20 and 30 trusted and
    40 and 50 committed.
    """
    run = Run(
        id="alpha",
        version=7,
        state="running",
        desired="running",
        generation=1,
        spec=spec(),
        workload=WORKLOAD,
        checkpoint_root="file:///alpha",
        created_at=NOW - timedelta(minutes=11),
        started_at=NOW - timedelta(minutes=10),
    )
    found = RunSnapshot(
        run=run,
        attempts=(attempt(last_committed_step=50),),
        ranks=ranks(),
        nodes=(node(taken=frozenset(range(4)), held_here=frozenset(range(4))),),
        checkpoints=(
            checkpoint(10),
            checkpoint(20),
            checkpoint(30),
            checkpoint(40, "committed"),
            checkpoint(50, "committed"),
        ),
        rules=RULES,
        windows=windows(50),
        control_up_since=NOW - timedelta(hours=1),
    )
    return change(found, **changes)


def change(snapshot: RunSnapshot, **changes: Any) -> RunSnapshot:
    """Return the snapshot with changed fields; those of the run may be given by their own names."""
    run_fields = {
        name: changes.pop(name)
        for name in ("state", "desired", "generation", "spec", "workload", "because", "code")
        if name in changes
    }
    return replace(snapshot, run=replace(snapshot.run, **run_fields), **changes)


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
