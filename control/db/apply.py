"""A decision becomes rows: one transaction, guarded by the version of the run on which it was
decided.

Invariant: whoever changes a run has seen its newest version. `UPDATE runs ... WHERE version =
:expected` comes first; when it finds no row, somebody was faster, nothing is written, and the next
turn looks again. Slots are inserted under a primary key: when another run took one meanwhile, the
whole turn is rolled back. So two reconcilers may run at once, on either database, without locks.

`touched` counts what facts and people told of a run. When it has moved since the snapshot, the run
stays due: no turn sleeps over news.

Crash: before the commit nothing has happened; after it, everything has. Nothing else than rows is
changed here.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Connection, case, func, insert, select, update
from sqlalchemy.exc import IntegrityError as RowExistsError

from control.db import copies, history, outbox, tables
from control.db.fleet import chores, interventions
from control.db.sql.upsert import upsert
from control.db.sql.values import number_word, plain
from control.decision import (
    AlertChange,
    AttemptEnd,
    CheckpointChange,
    Decision,
    IncidentChange,
    NewAttempt,
    NewDrill,
    NewOrder,
    RequestChange,
)
from control.lifecycle import TERMINAL
from trainmaster.errors import ConflictError
from trainmaster.layout import roles

_AUDITED = frozenset({"applied", "refused"})


class StaleVersionError(ConflictError):
    """The run was changed since the snapshot: look again."""

    code = "stale_version"


class SlotClashError(ConflictError):
    """Another run took one of the slots since the snapshot: look again."""

    code = "slot_clash"


def apply(connection: Connection, decision: Decision, *, touched: int, now: datetime) -> None:
    """Write `decision` within the transaction of `connection`.

    Raises:
        StaleVersionError, SlotClashError: nothing of it may be kept; the caller rolls back and
            looks again.
    """
    run = decision.run
    if not decision.changes_anything:
        _look_again(connection, decision, touched, now)
        return
    generation = _change_run(connection, decision, touched, now)
    if decision.attempt_end is not None:
        _end_attempt(connection, run, decision.attempt_end, now)
    if decision.new_attempt is not None:
        _begin_attempt(connection, run, decision.new_attempt, now)
    for order in decision.orders:
        _give_order(connection, run, generation, order, now)
    for request in decision.requests:
        _change_request(connection, run, request, now)
    for checkpoint in decision.checkpoints:
        _judge_checkpoint(connection, run, checkpoint, now)
    for incident in decision.incidents:
        _change_incident(connection, run, incident, now)
    for alert in decision.alerts:
        _change_alert(connection, run, alert, now)
    for drill in decision.drills:
        _send_drill(connection, run, drill.generation or generation, drill, now)
    interventions.carry_out(connection, decision, generation, now)
    for chore in decision.chores:
        chores.ask(connection, chore.kind, chore.args, now=now, run=run, node=chore.node)
    outbox.enqueue(connection, run, generation, decision.events, now=now)
    for event in decision.events:
        history.record(
            connection,
            at=now,
            run=run,
            generation=generation or None,
            kind=event.kind,
            actor=event.actor,
            because=event.because,
            data=event.data,
        )


def _next_look(decision: Decision, touched: int, now: datetime) -> Any:
    return case((tables.runs.c.touched == touched, decision.next_look_at), else_=now)


def _look_again(connection: Connection, decision: Decision, touched: int, now: datetime) -> None:
    c = tables.runs.c
    connection.execute(
        update(tables.runs)
        .where(c.id == decision.run)
        .values(next_look_at=_next_look(decision, touched, now))
    )


def _change_run(connection: Connection, decision: Decision, touched: int, now: datetime) -> int:
    """Make the guarded change of the run's row; return its generation after it."""
    c = tables.runs.c
    values: dict[str, Any] = {
        "version": c.version + 1,
        "next_look_at": _next_look(decision, touched, now),
    }
    if decision.state is not None:
        ends = decision.state in TERMINAL
        # A run that has ended keeps its code; one that goes on has none.
        values |= {"state": decision.state, "state_since": now, "ended_at": now if ends else None}
        values["code"] = decision.code
    elif decision.code is not None:
        values["code"] = decision.code
    if decision.because:
        values["because"] = decision.because
    for name in ("desired", "weights_sha256"):
        value = getattr(decision, name)
        if value is not None:
            values[name] = value
    if decision.spec is not None:
        spec = decision.spec
        args = chores.workload_args(spec.workload, spec.params, spec.data.source)
        values |= {
            "spec": spec.model_dump(mode="json"),
            "workload_key": chores.digest(args),
            "name": spec.name,
        }
    if decision.new_attempt is not None:
        values |= {
            "generation": decision.new_attempt.generation,
            "started_at": func.coalesce(c.started_at, now),
            "weights_sha256": None,
        }
    guarded = update(tables.runs).where(
        c.id == decision.run, c.version == decision.expected_version
    )
    if not connection.execute(guarded.values(**values)).rowcount:
        raise StaleVersionError(
            f"run {decision.run} is not at version {decision.expected_version} any more"
        )
    generation = connection.scalar(select(c.generation).where(c.id == decision.run))
    assert generation is not None
    return int(generation)


def _end_attempt(connection: Connection, run: str, end: AttemptEnd, now: datetime) -> None:
    a, s = tables.attempts.c, tables.slots.c
    connection.execute(
        update(tables.attempts)
        .where(a.run == run, a.generation == end.generation, a.ended_at.is_(None))
        .values(
            state=end.state, ended_at=now, ended_because=end.because, ended_by=plain(end.ended_by)
        )
    )
    connection.execute(tables.slots.delete().where(s.run == run, s.generation == end.generation))
    _supersede_orders(connection, run, end.generation, now)


def _supersede_orders(connection: Connection, run: str, generation: int, now: datetime) -> None:
    o = tables.orders.c
    connection.execute(
        update(tables.orders)
        .where(o.run == run, o.generation <= generation, o.state.in_(("sent", "received")))
        .values(state="refused", because="superseded", changed_at=now)
    )


def _begin_attempt(connection: Connection, run: str, new: NewAttempt, now: datetime) -> None:
    key = {"run": run, "generation": new.generation}
    spec = connection.scalar(select(tables.runs.c.spec).where(tables.runs.c.id == run))
    connection.execute(
        insert(tables.attempts).values(
            **key,
            parent_generation=new.parent_generation,
            state="starting",
            cause=new.cause,
            cause_kind=new.cause_kind,
            spec=spec,
            plan=new.plan.model_dump(mode="json"),
            checkpoint_every=new.checkpoint_every,
            started_at=now,
            resumed_from_step=new.resumed_from_step,
            resumed_from_checkpoint=new.resumed_from_checkpoint,
            skip=plain(new.skip),
            own_skip=plain(new.own_skip),
            lr_windows=plain(new.lr_windows),
            lr_factor=new.lr_factor,
            incident=new.incident,
        )
    )
    c = tables.checkpoints.c
    connection.execute(
        update(tables.checkpoints)
        .where(c.id == new.resumed_from_checkpoint)
        .values(tries=c.tries + 1)
    )
    by_rank = {role.rank: role for role in roles(new.plan)}
    connection.execute(
        insert(tables.ranks),
        [
            {
                **key,
                "rank": placed.rank,
                "node": placed.node,
                "slot": placed.slot,
                "replica": by_rank[placed.rank].replica,
                "stage": by_rank[placed.rank].stage,
                "state": "assigned",
            }
            for placed in new.placements
        ],
    )
    claims = [{**key, "node": placed.node, "slot": placed.slot} for placed in new.placements]
    try:
        connection.execute(insert(tables.slots), claims)
    except RowExistsError as error:
        raise SlotClashError(f"run {run}: another run took one of its slots just now") from error
    if new.generation > 1:
        _supersede_orders(connection, run, new.generation - 1, now)


def _give_order(
    connection: Connection, run: str, generation: int, order: NewOrder, now: datetime
) -> None:
    c = tables.orders.c
    last = (
        connection.scalar(select(func.max(c.seq)).where(c.run == run, c.generation == generation))
        or 0
    )
    connection.execute(
        insert(tables.orders).values(
            run=run,
            generation=generation,
            seq=last + 1,
            kind=order.kind,
            args=plain(order.args),
            state="sent",
            request=order.request,
            created_at=now,
            changed_at=now,
        )
    )


def _change_request(connection: Connection, run: str, change: RequestChange, now: datetime) -> None:
    c = tables.requests.c
    known = {
        name: value
        for name in ("generation", "step")
        if (value := getattr(change, name)) is not None
    }
    connection.execute(
        update(tables.requests)
        .where(c.id == change.id, c.run == run)
        .values(state=change.state, because=change.because, changed_at=now, **known)
    )
    if change.state in _AUDITED:
        kind = connection.scalar(select(c.kind).where(c.id == change.id))
        history.audit(
            connection,
            at=now,
            actor="control",
            action=f"{kind}_{change.state}",
            target=run,
            why=change.because,
            data={"request": change.id},
        )


def _judge_checkpoint(
    connection: Connection, run: str, change: CheckpointChange, now: datetime
) -> None:
    c = tables.checkpoints.c
    values: dict[str, Any] = {"because": change.because}
    for name in ("state", "abandoned", "trusted_at"):
        value = getattr(change, name)
        if value is not None:
            values[name] = value
    query = update(tables.checkpoints).where(c.id == change.id, c.run == run)
    if change.state == "retired":
        # Somebody may have pinned it since the snapshot: then it stays.
        query = query.where(c.pinned.is_(False))
        _refuse_if_wanted(connection, run, change.id)
    if not connection.execute(query.values(**values)).rowcount:
        raise StaleVersionError(f"checkpoint {change.id} was changed since it was looked at")
    if change.state == "retired":
        copies.retire(connection, change.id, now=now)


def _refuse_if_wanted(connection: Connection, run: str, checkpoint: str) -> None:
    """Let a checkpoint pass that nobody has asked to restore since the snapshot."""
    q = tables.requests.c
    asked = connection.scalars(
        select(q.args).where(
            q.run == run, q.kind == "restore", q.state.in_(("pending", "accepted"))
        )
    )
    if any(args.get("checkpoint") == checkpoint for args in asked):
        raise StaleVersionError(f"checkpoint {checkpoint} is to be restored")


def _change_alert(connection: Connection, run: str, change: AlertChange, now: datetime) -> None:
    c = tables.alerts.c
    open_alert = connection.execute(
        select(c.id, c.state)
        .where(
            c.run == run,
            c.rule == change.rule,
            c.scope == change.scope,
            c.state.in_(("pending", "firing")),
        )
        .order_by(c.id.desc())
        .limit(1)
    ).one_or_none()
    values = {
        "state": change.state,
        "value": None if change.value is None else number_word(change.value),
        "threshold": None if change.threshold is None else number_word(change.threshold),
        "first_bad_step": change.first_bad_step,
        "severity": change.severity,
        "generation": change.generation,
        "incident": change.incident,
        "flapping": change.flapping,
        "changed_at": now,
    }
    if open_alert is None:
        connection.execute(
            insert(tables.alerts).values(
                run=run, rule=change.rule, scope=change.scope, since=now, **values
            )
        )
    else:
        connection.execute(update(tables.alerts).where(c.id == open_alert.id).values(**values))


def _change_incident(
    connection: Connection, run: str, change: IncidentChange, now: datetime
) -> None:
    row = {
        "id": change.id,
        "run": run,
        "rule": change.rule,
        "opened_at": now,
        "closed_at": now if change.closed else None,
        "state": change.state,
        "closed_as": change.closed_as,
        "rung": change.rung,
        "first_bad_step": change.first_bad_step,
        "last_bad_step": change.last_bad_step,
        "actions": plain(change.actions),
        "verification": plain(change.verification),
        "proposed": plain(change.proposed) if change.proposed is not None else None,
        "because": change.because,
    }
    upsert(connection, tables.incidents, [row], keep=("run", "rule", "opened_at"))


def _send_drill(
    connection: Connection, run: str, generation: int, new: NewDrill, now: datetime
) -> None:
    row = {
        "run": run,
        "generation": generation,
        "id": new.drill.id,
        "drill": new.drill.model_dump(mode="json"),
        "fired": [],
        "request": new.request,
        "created_at": now,
    }
    upsert(connection, tables.drills, [row], keep=("fired", "created_at", "request"))
