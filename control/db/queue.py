"""The queue: runs that wait for slots, the highest priority first, then who came first."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, func, or_, select, update

from control.db import tables
from control.db.rows import Row

FRONT = 8
"""How many are looked at as soon as there may be room. The others get their turns the less often,
the further back they are.
"""


def before(connection: Connection, row: Row) -> int:
    """Return how many runs are before this one."""
    c = tables.runs.c
    earlier = or_(
        c.priority > row["priority"],
        (c.priority == row["priority"]) & (c.created_at < row["created_at"]),
    )
    return (
        connection.scalar(
            select(func.count()).select_from(tables.runs).where(c.state == "queued", earlier)
        )
        or 0
    )


def look_at_front(connection: Connection, *, now: datetime) -> None:
    """Have those at the front looked at now."""
    c = tables.runs.c
    front = (
        select(c.id)
        .where(c.state == "queued")
        .order_by(c.priority.desc(), c.created_at, c.id)
        .limit(FRONT)
    )
    connection.execute(
        update(tables.runs).where(c.id.in_(front), c.next_look_at > now).values(next_look_at=now)
    )
