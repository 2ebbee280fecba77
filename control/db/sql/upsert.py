"""INSERT ... ON CONFLICT DO UPDATE, which SQLite and PostgreSQL both have and SQLAlchemy spells per
dialect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def upsert(
    connection: Connection,
    table: Table,
    rows: Sequence[dict[str, Any]],
    *,
    keep: Sequence[str] = (),
) -> None:
    """Insert `rows`; one whose primary key is there already replaces it, but for the columns in
    `keep`.
    """
    if not rows:
        return
    make = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    statement = make(table)
    keys = [column.name for column in table.primary_key]
    changed = {name: statement.excluded[name] for name in rows[0] if name not in {*keys, *keep}}
    connection.execute(
        statement.on_conflict_do_update(index_elements=keys, set_=changed), list(rows)
    )
