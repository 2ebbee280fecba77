"""Which of several control planes on one PostgreSQL does the periodic work.

The leader holds an advisory lock on a connection of its own; the lock ends with that connection, so
a killed leader is followed within a second. A leader that was asleep while another took over wakes
up believing that it leads: therefore each term has an epoch, and every transaction of the periodic
work begins by asking whether its epoch is still the newest (`Fence`). Turns of runs need no fence:
they are guarded by the run's version.

The connection must reach PostgreSQL itself: a pooler in transaction mode would let the lock go.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import Protocol

import psycopg
from sqlalchemy import Connection, select

from control.db import tables
from control.db.sql.engine import Database
from trainmaster.errors import ConflictError

log = logging.getLogger(__name__)

LOCK_KEY = 7_452_613_880_421_337
"""The advisory lock of a Trainmaster database: any number that no other program uses."""

LOOK_EVERY_S = 0.5
ANSWER_WITHIN_MS = 2000
"""A database that is slower than this costs the leader its term."""

SILENT_MS = 4000
"""A leader from which PostgreSQL hears nothing for so long has stopped without ending (its machine
was suspended, the process halted), and its lock is let go.
"""

Fence = Callable[[Connection], None]
"""Raises ConflictError inside a transaction that no longer belongs to the leader."""


class Term(Protocol):
    """The periodic work of one term."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


def fence_of(epoch: int) -> Fence:
    """Return the fence of a term; it holds the epoch's row until the transaction ends."""

    def check(connection: Connection) -> None:
        c = tables.leadership.c
        if connection.scalar(select(c.epoch).with_for_update(read=True)) != epoch:
            raise ConflictError(f"another control plane leads since epoch {epoch}")

    return check


class Leadership:
    """Runs for the lead until stopped, and works while it holds it.

    Args:
        begin: makes the periodic work of a term, given its fence.
    """

    def __init__(self, db: Database, begin: Callable[[Fence], Term]) -> None:
        assert not db.is_sqlite, "on SQLite the lock of the home decides"
        self._dsn = db.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
        self._begin = begin
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leadership", daemon=True)
        self.leads = False

    def start(self) -> None:
        """Begin to run for the lead."""
        self._thread.start()

    def resign(self) -> None:
        """Have the term end, if there is one, and do not run again; does not wait for it."""
        self._stopping.set()

    def stop(self) -> None:
        """End the term, if there is one, and let another lead."""
        self.resign()
        self._thread.join()

    def _run(self) -> None:
        trouble = ""
        while not self._stopping.is_set():
            try:
                with self._connect() as connection:
                    trouble = ""
                    self._candidate(connection)
            except psycopg.Error as error:
                # Each trouble is told once, not twice a second for as long as it lasts.
                if trouble != str(error):
                    trouble = str(error)
                    log.warning("cannot run for the lead: %s", " ".join(trouble.split()))
            self._stopping.wait(LOOK_EVERY_S)

    def _connect(self) -> psycopg.Connection:
        connection = psycopg.connect(
            self._dsn,
            # Who leads can be seen in pg_locks and pg_stat_activity.
            application_name=f"trainmaster {os.getpid()} on {socket.gethostname()}",
            autocommit=True,
            connect_timeout=5,
            keepalives_idle=2,
            keepalives_interval=1,
            keepalives_count=3,
            options=f"-c statement_timeout={ANSWER_WITHIN_MS}",
        )
        # Known since PostgreSQL 14; an older one would refuse a connection that names it.
        connection.execute(
            "SELECT set_config(name, %s, false) FROM pg_settings WHERE name = "
            "'idle_session_timeout'",
            (str(SILENT_MS),),
        )
        return connection

    def _candidate(self, connection: psycopg.Connection) -> None:
        while not self._stopping.is_set():
            if _value(connection, "SELECT pg_try_advisory_lock(%s)", LOCK_KEY):
                self._lead(connection)
                return
            self._stopping.wait(LOOK_EVERY_S)

    def _lead(self, connection: psycopg.Connection) -> None:
        epoch = _value(connection, "UPDATE leadership SET epoch = epoch + 1 RETURNING epoch")
        assert isinstance(epoch, int), "the schema brings the row of the epoch along"
        term = self._begin(fence_of(epoch))
        term.start()
        self.leads = True
        log.info("leads since epoch %d", epoch)
        try:
            while not self._stopping.wait(LOOK_EVERY_S):
                _value(connection, "SELECT 1")
        finally:
            self.leads = False
            term.stop()
            log.info("no longer leads (epoch %d)", epoch)


def _value(connection: psycopg.Connection, query: str, *args: object) -> object:
    row = connection.execute(query, args or None).fetchone()
    return row[0] if row else None
