"""What the brain wants of nodes beside ranks: stacks called for, nodes that get no new ranks."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, select, update

from control.db import history, tables
from control.db.sql.values import plain
from control.decision import Cordon, Decision, NewStacks


def carry_out(connection: Connection, decision: Decision, generation: int, now: datetime) -> None:
    """Write what a decision wants of nodes."""
    for stacks in decision.stacks:
        call_for_stacks(connection, decision.run, generation, stacks, now)
    for each in decision.cordons:
        cordon(connection, decision.run, each, now)


def call_for_stacks(
    connection: Connection, run: str, generation: int, new: NewStacks, now: datetime
) -> None:
    """Add to what is asked of the agents of a generation."""
    a = tables.attempts.c
    of_attempt = (a.run == run, a.generation == generation)
    calls = connection.scalar(select(a.stacks).where(*of_attempt)) or []
    call = {
        "id": len(calls) + 1,
        "asked_at": now.isoformat(),
        "ranks": plain(new.ranks),
        "incident": new.incident,
        "request": new.request,
    }
    connection.execute(update(tables.attempts).where(*of_attempt).values(stacks=[*calls, call]))


def cordon(connection: Connection, run: str, new: Cordon, now: datetime) -> None:
    """Give a node no new ranks; one that has none already keeps its reason."""
    n = tables.nodes.c
    changed = (
        update(tables.nodes)
        .where(n.id == new.node, n.cordoned.is_(False))
        .values(cordoned=True, cordoned_because=new.because)
    )
    if connection.execute(changed).rowcount:
        history.record(
            connection,
            at=now,
            kind="node_cordoned",
            actor="control",
            because=new.because,
            data={"node": new.node, "run": run},
        )
        history.audit(
            connection,
            at=now,
            actor="control",
            action="node_cordoned",
            target=new.node,
            why=new.because,
            data={"run": run},
        )
