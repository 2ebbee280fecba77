"""Rows whose JSON cannot be read: told by name, kept from spoiling anything else, and mended where
another row says the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError
from sqlalchemy import (
    JSON,
    Column,
    Connection,
    Table,
    Text,
    cast,
    func,
    insert,
    select,
    type_coerce,
    update,
)

from control.db import history, rows, tables
from control.db.sql.faults import UnreadableError
from trainmaster.document import path_text
from trainmaster.errors import NotFoundError, UserError
from trainmaster.spec import RunSpec

MOST_FINDINGS = 100
NEWEST_ROWS = 100_000
"""Of tables that grow for ever, so many of the newest rows are looked at."""

NEWEST_RUNS = 2000
"""So many runs are read in full."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One value that cannot be read.

    Attributes:
        row: the row's primary key, as text.
        run: whose it is; None where it is no run's.
        mend: what to do about it.
    """

    table: str
    row: str
    column: str
    run: str | None
    problem: str
    mend: str


RESTORE = "put back a back-up (docs/backup.md)"


@contextmanager
def readable(what: str) -> Iterator[None]:
    """Have values that are not what they should be end as an error that names them.

    Raises:
        UnreadableError: they are not.
    """
    try:
        yield
    except (ValueError, TypeError, KeyError) as error:
        raise UnreadableError(f"{what} cannot be read: {said(error)}") from error


def said(error: Exception) -> str:
    """Return an error of reading as one short line."""
    if isinstance(error, UnreadableError):
        return error.message
    if isinstance(error, ValidationError):
        found = error.errors(include_url=False, include_context=False, include_input=False)[:3]
        return "; ".join(f"{path_text(each['loc'])}: {each['msg']}".strip(": ") for each in found)
    text = f"{error} is missing" if isinstance(error, KeyError) else str(error)
    return " ".join(text.split())[:300]


def plain_columns(table: Table) -> list[Column[Any]]:
    """Return the columns that hold no JSON."""
    return [column for column in table.c if not isinstance(column.type, JSON)]


def findings(connection: Connection) -> list[Finding]:
    """Return what cannot be read, at most `MOST_FINDINGS`."""
    found = [*_no_json(connection), *_no_runs(connection)]
    unique = {(each.table, each.row, each.column): each for each in reversed(found)}
    return list(reversed(unique.values()))[:MOST_FINDINGS]


def mend(connection: Connection, run: str, *, actor: str, now: datetime) -> int:
    """Take a run's spec from its newest attempt whose spec can be read; return its generation.

    Raises:
        NotFoundError: there is no such run.
        UserError: its spec can be read, or no attempt has one.
    """
    r = tables.runs.c
    raw = connection.execute(select(cast(r.spec, Text)).where(r.id == run)).one_or_none()
    if raw is None:
        raise NotFoundError(f"there is no run {run!r}")
    if _spec_problem(connection, run) is None:
        raise UserError(f"the spec of run {run} can be read: there is nothing to mend")
    spec, generation = _spec_of_newest(connection, run)
    if spec is None:
        raise UserError(
            f"no attempt of run {run} has a spec that can be read: {RESTORE}, or submit it anew"
        )
    connection.execute(
        update(tables.runs)
        .where(r.id == run)
        .values(spec=spec.model_dump(mode="json"), touched=r.touched + 1, next_look_at=now)
    )
    because = f"Its spec could not be read, and was taken from generation {generation}."
    connection.execute(
        insert(tables.events).values(
            at=now,
            run=run,
            generation=generation,
            kind="run_mended",
            actor=actor,
            because=because,
            data={},
        )
    )
    history.audit(
        connection,
        at=now,
        actor=actor,
        action="run_mended",
        target=run,
        data={"was": raw[0][:2000]},
    )
    return generation


def _no_json(connection: Connection) -> Iterator[Finding]:
    if connection.dialect.name != "sqlite":
        return  # PostgreSQL looks at JSON when it takes it
    for table in tables.metadata.sorted_tables:
        for column in table.c:
            if not isinstance(column.type, JSON):
                continue
            query = select(*table.primary_key).where(
                column.is_not(None), func.json_valid(type_coerce(column, Text)) == 0
            )
            if "id" in table.c and table.c.id.type.python_type is int:
                newest = select(func.max(table.c.id) - NEWEST_ROWS).scalar_subquery()
                query = query.where(table.c.id > newest)
            for row in connection.execute(query.limit(MOST_FINDINGS)).mappings():
                run = str(row["id"]) if table is tables.runs else row.get("run")
                yield _finding(connection, table, dict(row), column.name, run, "it is no JSON")


def _no_runs(connection: Connection) -> Iterator[Finding]:
    """Yield specs and plans that are JSON, and yet none."""
    r, a = tables.runs.c, tables.attempts.c
    newest = select(r.id).order_by(r.created_at.desc()).limit(NEWEST_RUNS)
    for run in connection.scalars(newest).all():
        problem = _spec_problem(connection, run)
        if problem is not None:
            yield _finding(connection, tables.runs, {"id": run}, "spec", run, problem)
        generations = select(a.generation).where(a.run == run).order_by(a.generation)
        for generation in connection.scalars(generations).all():
            key = {"run": run, "generation": generation}
            query = select(tables.attempts).where(a.run == run, a.generation == generation)
            try:
                row = connection.execute(query).mappings().one()
                RunSpec.model_validate(row["spec"])
                rows.attempt(row)
            except (ValueError, TypeError, KeyError) as error:
                yield _finding(connection, tables.attempts, key, "spec or plan", run, said(error))


def _spec_problem(connection: Connection, run: str) -> str | None:
    r = tables.runs.c
    try:
        RunSpec.model_validate(connection.scalar(select(r.spec).where(r.id == run)))
    except (ValueError, TypeError, KeyError) as error:
        return said(error)
    return None


def _spec_of_newest(connection: Connection, run: str) -> tuple[RunSpec | None, int]:
    a = tables.attempts.c
    newest = select(a.generation).where(a.run == run).order_by(a.generation.desc())
    for generation in connection.scalars(newest).all():
        query = select(a.spec).where(a.run == run, a.generation == generation)
        try:
            return RunSpec.model_validate(connection.scalar(query)), generation
        except (ValueError, TypeError, KeyError):
            continue
    return None, 0


def _finding(
    connection: Connection,
    table: Table,
    key: dict[str, Any],
    column: str,
    run: str | None,
    problem: str,
) -> Finding:
    way = RESTORE
    if table is tables.runs and run is not None:
        spec, generation = _spec_of_newest(connection, run)
        if spec is not None:
            way = (
                f"`python -m control mend {run}` takes the spec from generation {generation} (on "
                "SQLite, stop the control plane first)"
            )
    row = ", ".join(f"{name} {value}" for name, value in key.items())
    return Finding(table.name, row, column, run, problem, way)
