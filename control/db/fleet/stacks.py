"""Stacks of ranks as the API shows them: call by call, with the answers so far."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select

from control.db import tables
from control.db.sql.values import instant_text

Json = dict[str, Any]


def calls_of(connection: Connection, run: str, generation: int | None = None) -> list[Json]:
    """Return the calls for stacks of a run, or of one of its generations, oldest first.

    Each has its `stacks` by rank, and under `missing` the ranks that have not answered.
    """
    a, k, s = tables.attempts.c, tables.ranks.c, tables.stacks.c
    query = select(a.generation, a.stacks).where(a.run == run, a.stacks.is_not(None))
    if generation is not None:
        query = query.where(a.generation == generation)
    found = []
    for of, calls in connection.execute(query.order_by(a.generation)).all():
        ranks = connection.scalars(select(k.rank).where(k.run == run, k.generation == of)).all()
        rows = connection.execute(
            select(tables.stacks).where(s.run == run, s.generation == of).order_by(s.id, s.rank)
        ).mappings()
        told: dict[int, list[Json]] = {}
        for row in rows:
            kept = {name: row[name] for name in ("rank", "node", "how", "text", "because")}
            told.setdefault(row["id"], []).append({**kept, "at": instant_text(row["at"])})
        for call in calls:
            answers = told.get(call["id"], [])
            wanted = ranks if call["ranks"] is None else call["ranks"]
            missing = sorted(set(wanted) - {each["rank"] for each in answers})
            found.append({"generation": of, **call, "stacks": answers, "missing": missing})
    return found


def of_incidents(connection: Connection, incidents: list[str]) -> dict[str, list[Json]]:
    """Return which stacks are kept with each incident; their text is in `calls_of`."""
    s = tables.stacks.c
    found: dict[str, list[Json]] = {}
    query = select(s.incident, s.generation, s.id, s.rank, s.node, s.how).where(
        s.incident.in_(incidents)
    )
    for row in connection.execute(query.order_by(s.generation, s.id, s.rank)).mappings():
        kept = {name: value for name, value in row.items() if name != "incident"}
        found.setdefault(row["incident"], []).append(kept)
    return found
