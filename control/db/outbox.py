"""The outbox: what people are to be told, written in the transaction of what it is about, and sent
afterwards by the leader. Told at least once; the same thing is written once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection, delete, func, select, update
from sqlalchemy.dialects import postgresql, sqlite

from control import notices
from control.db import tables
from control.decision import NewEvent
from control.notices import Notice

FLAPS_AFTER: Final = 3
"""Firings of one rule within an hour of which each is told."""
KEEP: Final = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A notice that some channel has not had yet.

    Attributes:
        deliveries: channel -> how far it has come: `state`, `attempts`, `next_at`, `because`.
    """

    id: int
    run: str
    name: str
    severity: str
    title: str
    body: str
    channels: tuple[str, ...] | None
    created_at: datetime
    deliveries: Mapping[str, Mapping[str, Any]]


def enqueue(
    connection: Connection, run: str, generation: int, events: Iterable[NewEvent], *, now: datetime
) -> None:
    """Write what people are to be told of `events`."""
    for event in events:
        notice = notices.notice_of(run, generation, event)
        if notice is None:
            continue
        if notice.about is not None:
            notice = _damped(connection, run, notice, now)
        _add(connection, run, notice, now)


def _damped(connection: Connection, run: str, notice: Notice, now: datetime) -> Notice:
    """Return the notice itself, or the one that stands for it when its rule fires all the time."""
    assert notice.about is not None
    c = tables.notifications.c
    count = connection.scalar(
        select(func.count()).where(
            c.run == run, c.about == notice.about, c.created_at > now - timedelta(hours=1)
        )
    )
    if (count or 0) < FLAPS_AFTER:
        return notice
    return notices.flapping(run, notice.about, int(now.timestamp() // 3600), (count or 0) + 1)


def _add(connection: Connection, run: str, notice: Notice, now: datetime) -> None:
    make = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    statement = make(tables.notifications).values(
        key=notice.key,
        run=run,
        kind=notice.kind,
        about=notice.about,
        severity=notice.severity,
        title=notice.title,
        body=notice.body,
        channels=None if notice.channels is None else list(notice.channels),
        state="pending",
        deliveries={},
        created_at=now,
        next_at=now,
    )
    connection.execute(statement.on_conflict_do_nothing(index_elements=["key"]))


def due(connection: Connection, *, now: datetime, limit: int = 50) -> list[Waiting]:
    """Return notices that are to be tried now, oldest first."""
    c, r = tables.notifications.c, tables.runs.c
    rows = connection.execute(
        select(tables.notifications, r.name)
        .join(tables.runs, r.id == c.run)
        .where(c.state == "pending", c.next_at <= now)
        .order_by(c.id)
        .limit(limit)
    )
    return [
        Waiting(
            id=row.id,
            run=row.run,
            name=row.name,
            severity=row.severity,
            title=row.title,
            body=row.body,
            channels=None if row.channels is None else tuple(row.channels),
            created_at=row.created_at,
            deliveries=row.deliveries,
        )
        for row in rows
    ]


def settle(
    connection: Connection,
    notice: int,
    *,
    state: str,
    deliveries: Mapping[str, Mapping[str, Any]],
    next_at: datetime,
) -> None:
    """Note how far a notice has come: pending, sent, failed, or unsent where no channel takes
    it.
    """
    connection.execute(
        update(tables.notifications)
        .where(tables.notifications.c.id == notice)
        .values(state=state, deliveries=dict(deliveries), next_at=next_at)
    )


def forget(connection: Connection, *, now: datetime) -> None:
    """Remove notices that were settled long ago."""
    c = tables.notifications.c
    connection.execute(
        delete(tables.notifications).where(c.created_at < now - KEEP, c.state != "pending")
    )


def counts(connection: Connection, *, now: datetime) -> tuple[dict[str, int], float]:
    """Return how many notices there are by state, and the age of the oldest pending one in
    seconds.
    """
    c = tables.notifications.c
    by_state: dict[str, int] = dict(
        connection.execute(select(c.state, func.count()).group_by(c.state)).all()
    )
    oldest = connection.scalar(select(func.min(c.created_at)).where(c.state == "pending"))
    return by_state, 0.0 if oldest is None else max(0.0, (now - oldest).total_seconds())
