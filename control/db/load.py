"""A run's snapshot: everything one turn may look at, in one short read of one consistent state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Connection, func, or_, select

from control import snapshot as view
from control.db import copies, queue, rows, rulebook, silences, tables
from control.db.fleet import chores
from control.db.fleet.chores import AGAIN_AFTER, DONE
from control.db.fleet.nodes import Fleet
from control.db.samples.windows import Windows
from control.db.sql.among import one_of
from control.db.unreadable import readable
from trainmaster.orders import Drill
from trainmaster.spec import RunSpec


@dataclass(frozen=True, slots=True)
class Loaded:
    """A snapshot, and what the run's `touched` was when it was taken (see `apply`)."""

    snapshot: view.RunSnapshot
    touched: int


@dataclass(frozen=True, slots=True)
class Memory:
    """What turns keep for each other, in one process: nothing that the next turn would not read
    the same.
    """

    fleet: Fleet = field(default_factory=Fleet)
    rules: rulebook.Kept = field(default_factory=rulebook.Kept)
    windows: Windows = field(default_factory=Windows)


def load(
    connection: Connection,
    run: str,
    *,
    now: datetime,
    control_up_since: datetime | None,
    memory: Memory | None = None,
) -> Loaded | None:
    """Return the snapshot of a run, or None if there is no such run.

    Args:
        memory: what earlier turns have read; None: everything is read.
    """
    memory = memory or Memory()
    r = tables.runs.c
    row = connection.execute(select(tables.runs).where(r.id == run)).mappings().one_or_none()
    if row is None:
        return None
    with readable(f"the spec of run {run}"):
        spec = RunSpec.model_validate(row["spec"])
    has_begun = row["generation"] > 0  # else there is nothing that a generation leaves behind
    with readable(f"an attempt of run {run}"):
        attempts = _attempts(connection, run) if has_begun else ()
    args = chores.workload_args(spec.workload, spec.params, spec.data.source)
    workload = chores.known_workload(connection, args)
    rules = memory.rules.active(connection, spec.rules)
    i, a = tables.incidents.c, tables.alerts.c
    newest_alerts = select(func.max(a.id)).where(a.run == run).group_by(a.rule, a.scope)
    incidents = (
        connection.execute(select(tables.incidents).where(i.run == run).order_by(i.opened_at))
        .mappings()
        .all()
    )
    ranks = _ranks(connection, run, row["generation"]) if has_begun else ()
    homes = {rank.node for rank in ranks}
    snapshot = view.RunSnapshot(
        run=view.Run(
            id=row["id"],
            version=row["version"],
            state=row["state"],
            desired=row["desired"],
            generation=row["generation"],
            spec=spec,
            workload=workload.info,
            checkpoint_root=row["checkpoint_root"],
            created_at=row["created_at"],
            started_at=row["started_at"],
            because=row["because"],
            code=row["code"],
            generation_floor=row["generation_floor"],
        ),
        attempts=attempts,
        ranks=ranks,
        nodes=memory.fleet.seen_by(connection, run, homes, now),
        checkpoints=_checkpoints(connection, run, now) if has_begun else (),
        requests=_requests(connection, run),
        orders=_orders(connection, run, row["generation"]) if has_begun else (),
        rules=rules,
        alerts=tuple(
            rows.alert(each)
            for each in connection.execute(
                select(tables.alerts).where(a.id.in_(newest_alerts)).order_by(a.id)
            ).mappings()
        ),
        incidents=tuple(rows.incident(each) for each in incidents if each["closed_at"] is None),
        drills=_drills(connection, run),
        windows=memory.windows.of(connection, run, attempts, ranks, rules),
        rank_windows=memory.windows.of_ranks(connection, run, attempts, ranks, rules),
        describe_problems=tuple(_sentence(problem) for problem in workload.problems),
        queued_before=queue.before(connection, row) if row["state"] == "queued" else 0,
        describing=_is_describing(connection, row["workload_key"]),
        control_up_since=control_up_since,
        num_incidents=len(incidents),
        acted_at=_acted_at(incidents),
        reaches=_reaches(connection, homes) if len(homes) > 1 else (),
        silences=silences.active(connection, run, homes, now=now),
    )
    return Loaded(snapshot, row["touched"])


def _sentence(problem: rows.Row) -> str:
    path, message = problem.get("path"), problem["message"]
    return f"{path}: {message}" if path else message


def _attempts(connection: Connection, run: str) -> tuple[view.Attempt, ...]:
    a, c = tables.attempts.c, tables.checkpoints.c
    committed = dict(
        connection.execute(
            select(c.generation, func.max(c.step)).where(c.run == run).group_by(c.generation)
        ).all()
    )
    query = select(tables.attempts).where(a.run == run).order_by(a.generation)
    found = connection.execute(query).mappings().all()
    told = _stacks_told(connection, run) if any(each["stacks"] for each in found) else {}
    return tuple(
        rows.attempt(
            each,
            last_committed_step=committed.get(each["generation"]),
            told=told.get(each["generation"], {}),
        )
        for each in found
    )


def _stacks_told(connection: Connection, run: str) -> dict[int, dict[int, frozenset[int]]]:
    """Return generation -> call -> the ranks whose stacks are stored."""
    c = tables.stacks.c
    told: dict[int, dict[int, frozenset[int]]] = {}
    for generation, call, rank in connection.execute(
        select(c.generation, c.id, c.rank).where(c.run == run)
    ):
        calls = told.setdefault(generation, {})
        calls[call] = calls.get(call, frozenset()) | {rank}
    return told


def _reaches(connection: Connection, nodes: Iterable[str]) -> tuple[view.Reach, ...]:
    c = tables.reaches.c
    query = select(tables.reaches).where(one_of(connection, c.node, sorted(nodes)))
    found = connection.execute(query.order_by(c.node, c.witness)).mappings()
    return tuple(rows.reach(each) for each in found)


def _ranks(connection: Connection, run: str, generation: int) -> tuple[view.Rank, ...]:
    c = tables.ranks.c
    query = select(tables.ranks).where(c.run == run, c.generation == generation).order_by(c.rank)
    return tuple(rows.rank(each) for each in connection.execute(query).mappings())


def _checkpoints(connection: Connection, run: str, now: datetime) -> tuple[view.Checkpoint, ...]:
    h, c = tables.chores.c, tables.checkpoints.c
    recent = connection.execute(
        select(h.kind, h.args, h.state, h.result).where(
            h.run == run,
            h.kind.in_(("verify", "copy", "scrub")),
            or_(h.state != DONE, h.done_at > now - AGAIN_AFTER),
        )
    ).all()
    locations = {
        args.get("location")
        for kind, args, state, result in recent
        if kind == "verify" and (state != DONE or result.get("retryable") is True)
    }
    copying = [
        args.get("target")
        for kind, args, state, result in recent
        if kind == "copy" and (state != DONE or result.get("ok") is not True)
    ]
    copied = copies.of_run(connection, run, copying)
    scrubbed = {
        args.get("checkpoint")
        for kind, args, state, _ in recent
        if kind == "scrub" and state != DONE
    }
    found = connection.execute(
        select(tables.checkpoints)
        .where(c.run == run, c.state != "retired")
        .order_by(c.step, c.generation)
    ).mappings()
    return tuple(
        rows.checkpoint(
            each,
            verifying=each["location"] in locations,
            scrubbing=each["id"] in scrubbed,
            copies=copied.get(each["id"], ()),
        )
        for each in found
    )


def _requests(connection: Connection, run: str) -> tuple[view.Request, ...]:
    q, o = tables.requests.c, tables.orders.c
    found = connection.execute(
        select(tables.requests, o.seq)
        .outerjoin(tables.orders, (o.request == q.id) & (o.generation == q.generation))
        .where(q.run == run, q.state.in_(("pending", "accepted")))
        .order_by(q.id, o.seq)
    ).mappings()
    by_id = {
        row["id"]: view.Request(
            id=row["id"],
            kind=row["kind"],
            args=row["args"],
            actor=row["actor"],
            why=row["why"],
            state=row["state"],
            created_at=row["created_at"],
            generation=row["generation"],
            order_seq=row["seq"],
        )
        for row in found
    }
    return tuple(by_id.values())


def _orders(connection: Connection, run: str, generation: int) -> tuple[view.OrderStatus, ...]:
    c = tables.orders.c
    query = select(tables.orders).where(c.run == run, c.generation == generation).order_by(c.seq)
    return tuple(
        view.OrderStatus(
            row["seq"],
            row["kind"],
            row["args"],
            row["state"],
            row["step"],
            row["because"],
            row["request"],
            sent_at=row["created_at"],
        )
        for row in connection.execute(query).mappings()
    )


def _drills(connection: Connection, run: str) -> tuple[view.DrillStatus, ...]:
    c = tables.drills.c
    query = select(c.drill, c.generation, c.fired).where(c.run == run).order_by(c.generation, c.id)
    return tuple(
        view.DrillStatus(
            Drill.model_validate(drill),
            generation,
            tuple((of, step, batch) for of, step, batch in fired),
        )
        for drill, generation, fired in connection.execute(query)
    )


def _is_describing(connection: Connection, workload_key: str) -> bool:
    # The key of a chore digests its kind too; what a workload is known by digests its arguments
    # alone.
    c = tables.chores.c
    waiting = connection.scalars(select(c.args).where(c.kind == "describe", c.state != DONE))
    return any(chores.digest(args) == workload_key for args in waiting)


def _acted_at(incidents: Iterable[rows.Row]) -> dict[str, datetime]:
    acted: dict[str, datetime] = {}
    for incident in incidents:
        for action in incident["actions"]:
            if isinstance(action.get("at"), str):
                at = datetime.fromisoformat(action["at"])
                acted[incident["rule"]] = max(at, acted.get(incident["rule"], at))
    return acted
