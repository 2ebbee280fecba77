"""`(a, b) IN (...)` for many rows at once.

PostgreSQL gets the rows as arrays: the statement is the same for any number of them, so that it is
prepared once, where a list of a thousand placeholders would be taken apart each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, cast, func, select, tuple_
from sqlalchemy.dialects.postgresql import ARRAY


def among(
    connection: Connection, columns: Sequence[Column[Any]], rows: Sequence[Sequence[Any]]
) -> ColumnElement[bool]:
    """Return the condition that `columns` hold one of `rows`."""
    if connection.dialect.name == "sqlite":
        return tuple_(*columns).in_([tuple(row) for row in rows])
    arrays = [
        func.unnest(cast([row[position] for row in rows], ARRAY(column.type)))
        for position, column in enumerate(columns)
    ]
    return tuple_(*columns).in_(select(*arrays))


def one_of(
    connection: Connection, column: Column[Any], values: Sequence[Any]
) -> ColumnElement[bool]:
    """Return the condition that `column` holds one of `values`."""
    if connection.dialect.name == "sqlite":
        return column.in_(values)
    return column == func.any(cast(list(values), ARRAY(column.type)))
