"""The time that all control planes of one database follow."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from sqlalchemy import func, select

from control.clock import Reading, Source
from control.db import tables
from control.db.sql.engine import Database
from control.db.sql.values import Instant


def _wall() -> datetime:
    return datetime.now(UTC)


def source_of(db: Database, *, wall: Callable[[], datetime] = _wall) -> Source:
    """Return the database's clock; on SQLite, where one process has one database, this machine's.

    The source raises UnavailableError when the database is out of reach.
    """
    written = select(func.max(tables.nodes.c.last_seen_at, type_=Instant))

    def embedded() -> Reading:
        with db.read() as connection:
            return Reading(wall(), connection.scalar(written))

    def served() -> Reading:
        both = select(func.clock_timestamp(type_=Instant), written.scalar_subquery())
        with db.read() as connection:
            now, newest = connection.execute(both).one()
        return Reading(now, newest)

    return embedded if db.is_sqlite else served
