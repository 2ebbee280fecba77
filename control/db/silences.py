"""Silences: rules that are kept quiet for a while, one or all, for a run, for a node, or
everywhere. A silence of all rules is a maintenance window.

A silenced rule is judged and shown as ever; it neither acts, nor asks, nor notifies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, insert, or_, select, update

from control.db import history, tables
from control.db.sql.values import instant_text
from control.snapshot import Silence
from trainmaster.errors import ConflictError, NotFoundError

KEEP_ENDED = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class NewSilence:
    """What is to be quiet, and when. None: every rule, every run, every node."""

    rule: str | None
    run: str | None
    node: str | None
    begins_at: datetime
    ends_at: datetime
    why: str = ""


def add(connection: Connection, new: NewSilence, *, actor: str, now: datetime) -> dict[str, Any]:
    """Store a silence; runs that it concerns are looked at again.

    Raises:
        NotFoundError: there is no such rule, run or node.
    """
    _require(connection, tables.rules.c.name, new.rule, "rule")
    _require(connection, tables.runs.c.id, new.run, "run")
    _require(connection, tables.nodes.c.id, new.node, "node")
    added = connection.execute(
        insert(tables.silences).values(
            rule=new.rule,
            run=new.run,
            node=new.node,
            begins_at=new.begins_at,
            ends_at=new.ends_at,
            why=new.why,
            created_at=now,
            created_by=actor,
        )
    )
    assert added.inserted_primary_key is not None
    found = one(connection, int(added.inserted_primary_key[0]), now=now)
    _tell(connection, "silence_added", found, actor=actor, why=new.why, now=now)
    return found


def _require(connection: Connection, column: Any, value: str | None, what: str) -> None:
    if value is not None and connection.scalar(select(column).where(column == value)) is None:
        raise NotFoundError(f"there is no {what} {value!r}")


def end(connection: Connection, silence: int, *, actor: str, now: datetime) -> dict[str, Any]:
    """End a silence now.

    Raises:
        NotFoundError: there is none of this number.
        ConflictError: it is over already.
    """
    c = tables.silences.c
    before = one(connection, silence, now=now)
    changed = connection.execute(
        update(tables.silences)
        .where(c.id == silence, c.ends_at > now)
        .values(ends_at=now, ended_by=actor)
    )
    if not changed.rowcount:
        raise ConflictError(f"silence {silence} ended at {before['ends_at']}")
    found = one(connection, silence, now=now)
    _tell(connection, "silence_ended", found, actor=actor, why="", now=now)
    return found


def _tell(
    connection: Connection,
    action: str,
    found: dict[str, Any],
    *,
    actor: str,
    why: str,
    now: datetime,
) -> None:
    history.audit(
        connection,
        at=now,
        actor=actor,
        action=action,
        target=found["rule"] or "all rules",
        why=why,
        data=found,
    )
    if found["run"] is not None:
        history.touch_all(connection, [found["run"]], now)


def one(connection: Connection, silence: int, *, now: datetime) -> dict[str, Any]:
    """Return one silence.

    Raises:
        NotFoundError: there is none of this number.
    """
    c = tables.silences.c
    row = (
        connection.execute(select(tables.silences).where(c.id == silence)).mappings().one_or_none()
    )
    if row is None:
        raise NotFoundError(f"there is no silence {silence}")
    return _shown(row, now)


def listed(connection: Connection, *, now: datetime, ended: bool = False) -> list[dict[str, Any]]:
    """Return silences, oldest first; those that are over only when asked for."""
    c = tables.silences.c
    query = select(tables.silences).order_by(c.id)
    if not ended:
        query = query.where(c.ends_at > now)
    return [_shown(row, now) for row in connection.execute(query).mappings()]


def _shown(row: RowMapping, now: datetime) -> dict[str, Any]:
    is_over, has_begun = row["ends_at"] <= now, row["begins_at"] <= now
    return {
        **row,
        "begins_at": instant_text(row["begins_at"]),
        "ends_at": instant_text(row["ends_at"]),
        "created_at": instant_text(row["created_at"]),
        "state": "ended" if is_over else "active" if has_begun else "pending",
    }


def active(
    connection: Connection, run: str, nodes: Collection[str], *, now: datetime
) -> tuple[Silence, ...]:
    """Return the silences that hold now for a run whose ranks are on `nodes`."""
    c = tables.silences.c
    here: ColumnElement[bool] = or_(c.node.is_(None), c.node.in_(nodes))
    rows = connection.execute(
        select(c.id, c.rule, c.ends_at)
        .where(c.begins_at <= now, c.ends_at > now, or_(c.run.is_(None), c.run == run), here)
        .order_by(c.id)
    )
    return tuple(Silence(row.id, row.rule, row.ends_at) for row in rows)


def of_runs(connection: Connection, *, now: datetime) -> Callable[[str, str], bool]:
    """Return a function that says whether a rule is silenced for a run now."""
    c, r = tables.silences.c, tables.ranks.c
    rows = connection.execute(
        select(c.rule, c.run, c.node).where(c.begins_at <= now, c.ends_at > now)
    ).all()
    nodes = {row.node for row in rows if row.node is not None}
    homes: dict[str, set[str]] = {}
    if nodes:
        runs = tables.runs.c
        living = (
            select(r.run, r.node)
            .join(tables.runs, (runs.id == r.run) & (runs.generation == r.generation))
            .where(r.node.in_(nodes))
            .distinct()
        )
        for run, node in connection.execute(living):
            homes.setdefault(run, set()).add(node)

    def is_silenced(run: str, rule: str) -> bool:
        return any(
            (row.rule is None or row.rule == rule)
            and (row.run is None or row.run == run)
            and (row.node is None or row.node in homes.get(run, ()))
            for row in rows
        )

    return is_silenced
