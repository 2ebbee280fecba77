"""What should run on a node: the answer to a sync. Read from rows alone, so that repeating it is
always right.
"""

from __future__ import annotations

from sqlalchemy import Connection, select

from control.db import rows, tables
from trainmaster.orders import Drill, Order
from trainmaster.plan import Plan
from trainmaster.spec import RunSpec
from trainmaster.wire import Assignment, RankAssignment, Resume

SOON_S = 0.2
"""When a node comes back while something is on its way: a start, an order, a drill, a chore."""

IDLE_S = 1.0


def assignments_of(connection: Connection, node: str) -> list[Assignment]:
    """Return one assignment per living attempt of which ranks are placed on `node`."""
    r, a, k = tables.runs.c, tables.attempts.c, tables.ranks.c
    living = (
        select(tables.attempts, r.checkpoint_root)
        .join(tables.runs, (r.id == a.run) & (r.generation == a.generation))
        .where(
            a.ended_at.is_(None),
            select(k.rank)
            .where(k.run == a.run, k.generation == a.generation, k.node == node)
            .exists(),
        )
        .order_by(a.run)
    )
    return [
        _assignment(connection, node, attempt) for attempt in connection.execute(living).mappings()
    ]


def _assignment(connection: Connection, node: str, attempt: rows.Row) -> Assignment:
    run, generation = attempt["run"], attempt["generation"]
    k, o, d = tables.ranks.c, tables.orders.c, tables.drills.c
    of_attempt = (k.run == run, k.generation == generation)
    here = connection.execute(
        select(k.rank, k.slot).where(*of_attempt, k.node == node).order_by(k.rank)
    ).all()
    orders = connection.execute(
        select(o.seq, o.kind, o.args)
        .where(o.run == run, o.generation == generation, o.state.in_(("sent", "received")))
        .order_by(o.seq)
    )
    drills = connection.scalars(
        select(d.drill).where(d.run == run, d.generation == generation).order_by(d.id)
    )
    plan = Plan.model_validate(attempt["plan"])
    return Assignment(
        run=run,
        generation=generation,
        world_size=plan.world_size,
        hosts_store=any(rank == 0 for rank, _ in here),
        store=attempt["store"],
        ranks=[RankAssignment(rank=rank, slot=slot) for rank, slot in here],
        spec=RunSpec.model_validate(attempt["spec"]),
        plan=plan,
        resume=_resume(connection, attempt),
        skip=list(rows.ranges(attempt["skip"])),
        lr_windows=list(rows.lr_windows(attempt["lr_windows"])),
        checkpoint_every=attempt["checkpoint_every"],
        checkpoint_root=attempt["checkpoint_root"],
        orders=[Order(seq=seq, kind=kind, args=args) for seq, kind, args in orders],
        drills=[Drill.model_validate(drill) for drill in drills],
    )


def _resume(connection: Connection, attempt: rows.Row) -> Resume | None:
    if attempt["resumed_from_checkpoint"] is None:
        return None
    c = tables.checkpoints.c
    row = connection.execute(
        select(c.id, c.step, c.location, c.manifest_sha256).where(
            c.id == attempt["resumed_from_checkpoint"]
        )
    ).one()
    return Resume(
        checkpoint=row.id, step=row.step, location=row.location, manifest_sha256=row.manifest_sha256
    )


def come_back_s(
    connection: Connection, node: str, assignments: list[Assignment], num_chores: int
) -> float:
    """Return in how many seconds `node` should sync again at the latest."""
    if num_chores or any(
        assignment.orders or assignment.store is None for assignment in assignments
    ):
        return SOON_S
    k = tables.ranks.c
    for assignment in assignments:
        of_attempt = (k.run == assignment.run, k.generation == assignment.generation)
        states = set(connection.scalars(select(k.state).where(*of_attempt)))
        if states & {"assigned", "started"}:
            return SOON_S
    return IDLE_S
