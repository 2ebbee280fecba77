"""Many rows at once: by COPY on PostgreSQL, where a round trip or a statement per row would cost
more than the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import BigInteger, Boolean, Connection, Integer, LargeBinary, String, Table, insert

_TYPES = ((BigInteger, "int8"), (Integer, "int4"), (Boolean, "bool"), (LargeBinary, "bytea"))


def insert_many(
    connection: Connection, table: Table, names: Sequence[str], rows: Sequence[tuple[Any, ...]]
) -> None:
    """Insert `rows`, whose values are those of the columns `names`, in order and in the
    connection's transaction.
    """
    if not rows:
        return
    if connection.dialect.name == "sqlite":
        connection.execute(insert(table), [dict(zip(names, row, strict=True)) for row in rows])
        return
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(
        sql.Identifier(table.name), sql.SQL(", ").join(map(sql.Identifier, names))
    )
    with driver.cursor() as cursor, cursor.copy(statement) as copy:
        copy.set_types([_type(table, name) for name in names])
        for row in rows:
            copy.write_row(row)


def _type(table: Table, name: str) -> str:
    kind = table.c[name].type
    if isinstance(kind, String):
        return "text"
    return next(word for known, word in _TYPES if isinstance(kind, known))
