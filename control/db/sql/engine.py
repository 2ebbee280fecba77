"""The database connection: one short read or one short write at a time, on SQLite or PostgreSQL.

A read sees one consistent state (a deferred transaction on SQLite, REPEATABLE READ on PostgreSQL).
A write either happens whole or not at all. Writers of one process queue fairly on SQLite, where the
file admits one at a time and would let them starve.

Whatever fails ends within seconds and as one of our errors (`sql.faults`): a statement that takes
too long, a lock that is not given, a server that no longer answers.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from control.db.sql.faults import DatabaseError, Faults, Kind, UnreadableError, translated
from trainmaster.errors import UserError

TIMEOUT_S = 30.0
"""For how long one statement may take on PostgreSQL."""

LOCK_TIMEOUT_S = 10.0
"""For how long one statement may wait for a row or a table that another transaction holds."""

BUSY_TIMEOUT_S = 15.0
"""For how long a write waits on SQLite for the writer before it."""

POOL_SIZE = 20
"""Connections kept; half of the server's threads, so that a slow database shows as waiting rather
than as a pile of sessions.
"""

POOL_OVERFLOW = 10
"""Connections beyond those for a while. Three control planes stay below PostgreSQL's usual 100."""

POOL_TIMEOUT_S = 5.0
"""For how long a request waits for a connection."""

TROUBLED_S = 2.0
"""For how long after a write that failed the database is called troubled."""

_WRITES = "trainmaster_writes"


class Database:
    """An engine and the two ways to use it.

    Args:
        timeout_s: for how long one statement may take on PostgreSQL, and a write may wait for its
            turn on SQLite, where it is at most `BUSY_TIMEOUT_S`.

    Attributes:
        file: the embedded database's file; None for PostgreSQL.
        faults: how often it failed this process.
    """

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self.url = url
        self.engine = _engine(url, timeout_s)
        self.is_sqlite = self.engine.dialect.name == "sqlite"
        self.file = self.engine.url.database if self.is_sqlite else None
        self.faults = Faults()
        self._turn_timeout_s = min(BUSY_TIMEOUT_S, timeout_s)
        self._trouble: tuple[DatabaseError, float] | None = None
        self._reader = self.engine
        if not self.is_sqlite:
            self._reader = self.engine.execution_options(isolation_level="REPEATABLE READ")
        self._turn = threading.Lock() if self.is_sqlite else None

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Yield a connection that sees one consistent state of the database.

        Raises:
            DatabaseError: the database cannot do this now.
        """
        with self._translated(), self._reader.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Yield a connection whose changes are all kept when the block ends, or none when it
        raises.

        Raises:
            DatabaseError: the database cannot do this now.
            ConflictError: somebody else wrote a row of the same name meanwhile.
        """
        if self._turn is None:
            with self._translated(writes=True), self.engine.begin() as connection:
                yield connection
            return
        with self._in_turn(), self._translated(writes=True), self.engine.connect() as opened:
            connection = opened.execution_options(**{_WRITES: True})
            with connection.begin():
                yield connection

    @contextmanager
    def migrate(self) -> Iterator[Connection]:
        """Yield a connection for changes of the schema: as `write`, without limits of time.

        On SQLite foreign keys are not enforced meanwhile, because a table is changed by making it
        anew; they are checked at the end.

        Raises:
            DatabaseError: the database cannot do this now.
        """
        if self._turn is None:
            with self.write() as connection:
                connection.execute(text("SET LOCAL statement_timeout = 0"))
                connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
                yield connection
            return
        with self._in_turn(), self._translated(writes=True), self.engine.connect() as opened:
            connection = opened.execution_options(**{_WRITES: True})
            driver = connection.connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            driver.execute("PRAGMA foreign_keys=OFF")
            try:
                with connection.begin():
                    yield connection
                    lost = connection.execute(text("PRAGMA foreign_key_check")).all()
                    assert not lost, f"a revision leaves rows without what they refer to: {lost}"
            finally:
                driver.execute("PRAGMA foreign_keys=ON")

    def probe(self) -> None:
        """Do nothing if the database can be read and, where writes failed, written.

        Raises:
            DatabaseError: it cannot, or writes failed just now: a full disk still takes small ones.
        """
        with self.read() as connection:
            connection.execute(text("SELECT epoch FROM leadership"))
        if self._trouble is None:
            return
        error, at = self._trouble
        if time.monotonic() - at < TROUBLED_S:
            raise error
        with self.write() as connection:
            connection.execute(text("UPDATE leadership SET epoch = epoch"))
        self._trouble = None

    def close(self) -> None:
        """Close all pooled connections."""
        self.engine.dispose()

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        assert self._turn is not None
        if not self._turn.acquire(timeout=self._turn_timeout_s):
            self.faults.count(Kind.SLOW)
            raise DatabaseError(
                f"the database file {self.file} is busy: the writers before this one took more "
                f"than {self._turn_timeout_s:g} s; see whether its disk is slow",
                Kind.SLOW,
            )
        try:
            yield
        finally:
            self._turn.release()

    @contextmanager
    def _translated(self, *, writes: bool = False) -> Iterator[None]:
        try:
            yield
        except json.JSONDecodeError as error:
            raise UnreadableError(
                f"a stored value is no JSON ({error}): `trainmaster doctor` names its row"
            ) from error
        except (SQLAlchemyError, sqlite3.Error, psycopg.Error) as error:
            meant = translated(error, file=self.file)
            if meant is None:
                raise
            if isinstance(meant, DatabaseError):
                self.faults.count(meant.kind)
                if writes and meant.kind != Kind.CLASH:
                    self._trouble = meant, time.monotonic()
            raise meant from error


def _engine(url: str, timeout_s: float) -> Engine:
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
            max_overflow=POOL_OVERFLOW,
            pool_timeout=POOL_TIMEOUT_S,
            pool_pre_ping=dialect != "sqlite",
            connect_args={"timeout": min(BUSY_TIMEOUT_S, timeout_s)}
            if dialect == "sqlite"
            else _postgresql_arguments(parsed.query.get("options"), timeout_s),
        )
    except (ArgumentError, NoSuchModuleError) as error:
        raise UserError(f"TRAINMASTER_DATABASE_URL is not a database address: {error}") from error
    if dialect == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _postgresql_arguments(given: object, timeout_s: float) -> dict[str, object]:
    """Return how to connect; options in the address come last and so win."""
    ours = {
        "statement_timeout": timeout_s,
        "lock_timeout": min(LOCK_TIMEOUT_S, timeout_s),
        # Ours never wait for anybody between two statements: one that does was put to sleep.
        "idle_in_transaction_session_timeout": 2 * timeout_s,
    }
    options = [f"-c {name}={int(seconds * 1000)}" for name, seconds in ours.items()]
    theirs = [given] if isinstance(given, str) else list(given) if isinstance(given, tuple) else []
    return {
        "options": " ".join([*options, *theirs]),
        "connect_timeout": 5,
        # A server that vanished without a word (its machine, the line) is given up after 20 s.
        "keepalives_idle": 10,
        "keepalives_interval": 3,
        "keepalives_count": 3,
        "tcp_user_timeout": 20_000,
    }


def _to_json(value: Any) -> str:
    """Serialise a JSON column; a bare NaN would not be JSON and raises (see
    `control.db.sql.values.plain`).
    """
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    # The driver's own BEGIN comes too late (before the first write): we say it ourselves, below.
    connection.isolation_level = None
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    # A read that turns into a write fails at once when somebody else wrote meanwhile; so writes say
    # so first.
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
