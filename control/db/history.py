"""The run's history and the audit log: append and read.

Events of one run are numbered in the order in which their transactions end, so that who follows by
number misses none: every writer of events first updates the run's row (`touch_all`, or the guarded
update of `apply`), and thereby waits for the one before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, insert, select, update

from control.db import tables
from control.db.sql.among import one_of
from control.db.sql.values import instant_text, plain

MAX_EVENTS = 10_000
"""Events of one answer; who wants more goes on from the last."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One event of the history."""

    at: datetime
    kind: str
    actor: str
    because: str = ""
    run: str | None = None
    generation: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


def touch_all(connection: Connection, runs: Sequence[str], now: datetime) -> set[str]:
    """Make runs due, and keep their rows for this transaction; return those that there are.

    Args:
        runs: in the order of their ids, which is the order of the locks.
    """
    if not runs:
        return set()
    c = tables.runs.c
    found = list(
        connection.scalars(
            select(c.id).where(one_of(connection, c.id, runs)).order_by(c.id).with_for_update()
        )
    )
    if found:
        connection.execute(
            update(tables.runs)
            .where(one_of(connection, c.id, found))
            .values(touched=c.touched + 1, next_look_at=now)
        )
    return set(found)


def record_all(connection: Connection, events: Sequence[Recorded]) -> None:
    """Append events, in this order."""
    if events:
        connection.execute(
            insert(tables.events),
            [
                {
                    "at": event.at,
                    "run": event.run,
                    "generation": event.generation,
                    "kind": event.kind,
                    "actor": event.actor,
                    "because": event.because,
                    "data": plain(event.data),
                }
                for event in events
            ],
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
    record_all(connection, [Recorded(at, kind, actor, because, run, generation, data or {})])


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
    before: int | None = None,
    kinds: Iterable[str] = (),
    limit: int = MAX_EVENTS,
    newest: bool = False,
) -> list[dict[str, Any]]:
    """Return the run's events with a number above `after` and below `before`, oldest first: the
    first `limit` of them, or the newest.
    """
    c = tables.events.c
    query = (
        select(tables.events)
        .where(c.run == run, c.id > after)
        .order_by(c.id.desc() if newest else c.id)
    )
    if before is not None:
        query = query.where(c.id < before)
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
