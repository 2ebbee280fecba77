"""The run's history and the audit log: append and read.

Events of one run are numbered in the order in which their transactions end, so that who follows by
number misses none: every writer of events first updates the run's row (`touch`, or the guarded
update of `apply`), and thereby waits for the one before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, insert, select, update

from control.db import tables
from control.db.values import instant_text, plain

MAX_EVENTS = 10_000
"""Events of one answer; who wants more goes on from the last."""


def touch(connection: Connection, run: str, now: datetime) -> bool:
    """Make a run due, and keep its row for this transaction; return whether there is such a run."""
    runs = tables.runs
    return bool(
        connection.execute(
            update(runs)
            .where(runs.c.id == run)
            .values(touched=runs.c.touched + 1, next_look_at=now)
        ).rowcount
    )


def record(
    connection: Connection,
    *,
    at: datetime,
    kind: str,
    actor: str,
    because: str = "",
    run: str | None = None,
    generation: int | None = None,
    data: Mapping[str, Any] | None = None,
) -> None:
    """Append one event."""
    connection.execute(
        insert(tables.events).values(
            at=at,
            run=run,
            generation=generation,
            kind=kind,
            actor=actor,
            because=because,
            data=plain(data or {}),
        )
    )


def audit(
    connection: Connection,
    *,
    at: datetime,
    actor: str,
    action: str,
    target: str,
    why: str = "",
    data: Mapping[str, Any] | None = None,
) -> None:
    """Append one entry to the audit log."""
    connection.execute(
        insert(tables.audit).values(
            at=at, actor=actor, action=action, target=target, why=why, data=plain(data or {})
        )
    )


def events_of(
    connection: Connection,
    run: str,
    *,
    after: int = 0,
    kinds: Iterable[str] = (),
    limit: int = MAX_EVENTS,
    newest: bool = False,
) -> list[dict[str, Any]]:
    """Return the run's events with a number above `after`, oldest first: the first `limit` of them,
    or the newest.
    """
    c = tables.events.c
    query = (
        select(tables.events)
        .where(c.run == run, c.id > after)
        .order_by(c.id.desc() if newest else c.id)
    )
    query = query.limit(min(limit, MAX_EVENTS))
    wanted = list(kinds)
    if wanted:
        query = query.where(c.kind.in_(wanted))
    found = [{**row, "at": instant_text(row["at"])} for row in connection.execute(query).mappings()]
    return found[::-1] if newest else found


def audit_log(
    connection: Connection, *, after: int = 0, target: str | None = None, limit: int = MAX_EVENTS
) -> list[dict[str, Any]]:
    """Return the newest entries of the audit log above `after`, oldest first."""
    c = tables.audit.c
    query = (
        select(tables.audit).where(c.id > after).order_by(c.id.desc()).limit(min(limit, MAX_EVENTS))
    )
    if target is not None:
        query = query.where(c.target == target)
    rows = connection.execute(query).mappings().all()
    return [{**row, "at": instant_text(row["at"])} for row in reversed(rows)]
