"""The database connection: one short read or one short write at a time, on SQLite or PostgreSQL.

A read sees one consistent state (a deferred transaction on SQLite, REPEATABLE READ on PostgreSQL).
A write either happens whole or not at all. Writers of one process queue fairly on SQLite, where the
file admits one at a time and would let them starve.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError
from sqlalchemy.exc import IntegrityError as RowExistsError

from trainmaster.errors import ConflictError, UnavailableError, UserError

BUSY_TIMEOUT_S = 15.0
POOL_SIZE = 20
"""Connections kept; half of the server's threads, so that a slow database shows as waiting rather
than as a pile of sessions.
"""

_WRITES = "trainmaster_writes"


class Database:
    """An engine and the two ways to use it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = _engine(url)
        self.is_sqlite = self.engine.dialect.name == "sqlite"
        self._reader = self.engine
        if not self.is_sqlite:
            self._reader = self.engine.execution_options(isolation_level="REPEATABLE READ")
        self._turn = threading.Lock() if self.is_sqlite else None

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Yield a connection that sees one consistent state of the database.

        Raises:
            UnavailableError: the database is out of reach or full.
        """
        with _translated(), self._reader.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Yield a connection whose changes are all kept when the block ends, or none when it
        raises.

        Raises:
            UnavailableError: the database is out of reach or full.
            ConflictError: somebody else wrote a row of the same name meanwhile.
        """
        if self._turn is None:
            with _translated(), self.engine.begin() as connection:
                yield connection
            return
        with self._turn, _translated(), self.engine.connect() as opened:
            connection = opened.execution_options(**{_WRITES: True})
            with connection.begin():
                yield connection

    def close(self) -> None:
        """Close all pooled connections."""
        self.engine.dispose()


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except OperationalError as error:
        raise UnavailableError(
            f"the database cannot be used: {error.orig}", code="database"
        ) from error
    except RowExistsError as error:
        raise ConflictError("somebody else wrote the same just now: look again") from error
    except DBAPIError as error:
        if error.connection_invalidated:
            raise UnavailableError(
                f"the database went away: {error.orig}", code="database"
            ) from error
        raise


def _engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
        dialect = parsed.get_backend_name()
        if dialect == "postgresql" and parsed.get_driver_name() not in {"psycopg", ""}:
            raise UserError("TRAINMASTER_DATABASE_URL must begin with postgresql+psycopg://")
        if dialect not in {"sqlite", "postgresql"}:
            raise UserError(
                f"{dialect} is not supported; use postgresql+psycopg:// or leave it out for SQLite"
            )
        # A bare postgresql:// means psycopg 3 here; SQLAlchemy would take it for psycopg 2.
        if dialect == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        engine = create_engine(
            parsed,
            json_serializer=_to_json,
            pool_size=POOL_SIZE,
            max_overflow=POOL_SIZE,
            pool_pre_ping=dialect != "sqlite",
            connect_args={"timeout": BUSY_TIMEOUT_S}
            if dialect == "sqlite"
            else {"connect_timeout": 10},
        )
    except (ArgumentError, NoSuchModuleError) as error:
        raise UserError(f"TRAINMASTER_DATABASE_URL is not a database address: {error}") from error
    if dialect == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _to_json(value: Any) -> str:
    """Serialise a JSON column; a bare NaN would not be JSON and raises (see
    `control.db.values.plain`).
    """
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    # The driver's own BEGIN comes too late (before the first write): we say it ourselves, below.
    connection.isolation_level = None
    for pragma in (
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "foreign_keys=ON",
        f"busy_timeout={int(BUSY_TIMEOUT_S * 1000)}",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    # A read that turns into a write fails at once when somebody else wrote meanwhile; so writes say
    # so first.
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
