"""Where people have put runs: tags, and whether one is archived. Nothing decides on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, select

from control.db import history, queries, tables
from control.db.sql.upsert import upsert
from control.lifecycle import ENDED
from trainmaster.errors import ConflictError


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run is: under which tags, and since when in the archive."""

    tags: tuple[str, ...] = ()
    archived_at: datetime | None = None


def places(connection: Connection, run: str | None = None) -> dict[str, Place]:
    """Return run -> its place, of those that were ever put anywhere; of one run, if it is given."""
    query = select(tables.shelf)
    if run is not None:
        query = query.where(tables.shelf.c.run == run)
    return {
        row["run"]: Place(tuple(row["tags"]), row["archived_at"])
        for row in connection.execute(query).mappings()
    }


def tag(
    connection: Connection, run: str, tags: Sequence[str], *, actor: str, now: datetime
) -> None:
    """Give a run these tags and no others; each once, in the order given.

    Raises:
        NotFoundError: there is no such run.
    """
    queries.run_row(connection, run)
    before = places(connection, run).get(run, Place())
    _put(connection, run, Place(tuple(dict.fromkeys(tags)), before.archived_at))
    told = {"tags": list(dict.fromkeys(tags)), "before": list(before.tags)}
    history.audit(connection, at=now, actor=actor, action="run_tagged", target=run, data=told)


def archive(connection: Connection, run: str, *, archived: bool, actor: str, now: datetime) -> None:
    """Put a run that has ended into the archive, or take it out.

    Raises:
        NotFoundError: there is no such run.
        ConflictError: it has not ended.
    """
    row = queries.run_row(connection, run)
    if archived and row["state"] not in ENDED:
        raise ConflictError(
            f"run {run} is {row['state']}: only what has ended can be archived; stop it first",
            code="not_ended",
        )
    before = places(connection, run).get(run, Place())
    if archived == (before.archived_at is not None):
        return
    _put(connection, run, Place(before.tags, now if archived else None))
    action = "run_archived" if archived else "run_unarchived"
    history.audit(connection, at=now, actor=actor, action=action, target=run)


def _put(connection: Connection, run: str, place: Place) -> None:
    row = {"run": run, "tags": list(place.tags), "archived_at": place.archived_at}
    upsert(connection, tables.shelf, [row])
