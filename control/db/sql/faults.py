"""What a failing database says, as one of our errors: what it means, and who can mend it how.

Nothing that a database does to us is a bug of ours to be answered with 500: it is unavailable, in
one of the ways of `Kind`, and whoever asked tries again later. Whatever a transaction had written
before is gone with it.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from enum import StrEnum

import psycopg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import IntegrityError as RowExistsError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from trainmaster.errors import ConflictError, TrainmasterError, UnavailableError


class Kind(StrEnum):
    """How a database fails; the label of `trainmaster_control_database_errors_total`."""

    UNREACHABLE = "unreachable"
    BUSY = "busy"
    SLOW = "slow"
    CLASH = "clash"
    FULL = "full"
    READ_ONLY = "read_only"
    DAMAGED = "damaged"
    SCHEMA = "schema"
    REFUSED = "refused"


_RETRY_AFTER_S = {Kind.FULL: 10, Kind.READ_ONLY: 10, Kind.DAMAGED: 30, Kind.SCHEMA: 10}

_STATES = {
    "25006": Kind.READ_ONLY,
    "25P03": Kind.SLOW,
    "40001": Kind.CLASH,
    "40P01": Kind.CLASH,
    "42501": Kind.REFUSED,
    "42P01": Kind.SCHEMA,
    "42703": Kind.SCHEMA,
    "53100": Kind.FULL,
    "53200": Kind.BUSY,
    "53300": Kind.BUSY,
    "53400": Kind.BUSY,
    "55P03": Kind.SLOW,
    "57014": Kind.SLOW,
    "58030": Kind.DAMAGED,
    "XX001": Kind.DAMAGED,
    "XX002": Kind.DAMAGED,
}

_SQLITE_NAMES = {
    "SQLITE_BUSY": Kind.SLOW,
    "SQLITE_LOCKED": Kind.SLOW,
    "SQLITE_PROTOCOL": Kind.SLOW,
    "SQLITE_FULL": Kind.FULL,
    "SQLITE_READONLY": Kind.READ_ONLY,
    "SQLITE_PERM": Kind.READ_ONLY,
    "SQLITE_CORRUPT": Kind.DAMAGED,
    "SQLITE_NOTADB": Kind.DAMAGED,
    "SQLITE_CANTOPEN": Kind.UNREACHABLE,
    "SQLITE_IOERR": Kind.UNREACHABLE,
    "SQLITE_NOMEM": Kind.BUSY,
}

_POSTGRESQL_WORDS = {
    Kind.UNREACHABLE: "PostgreSQL cannot be reached: see that it runs, and that "
    "TRAINMASTER_DATABASE_URL names it",
    Kind.BUSY: "PostgreSQL takes no more connections: raise its max_connections (or the role's "
    "limit), or run fewer control planes",
    Kind.SLOW: "PostgreSQL did not answer in time: look for a long transaction or a lock in "
    "pg_stat_activity, and for a slow disk",
    Kind.CLASH: "PostgreSQL ended one of two transactions that stood in each other's way: the same "
    "again will do",
    Kind.FULL: "PostgreSQL's disk is full: free some space there",
    Kind.READ_ONLY: "PostgreSQL takes no writes: it is a standby, or default_transaction_read_only "
    "is on; name the primary in TRAINMASTER_DATABASE_URL",
    Kind.DAMAGED: "PostgreSQL found damaged data: see its log, and docs/backup.md for the way back",
    Kind.SCHEMA: "a table or column is missing: run `python -m control migrate` with the version "
    "that runs here",
    Kind.REFUSED: "PostgreSQL refuses this role: grant it the rights of a table's owner",
}

_SQLITE_WORDS = {
    Kind.UNREACHABLE: "the database file {file} cannot be read or written: see that its folder is "
    "there, belongs to this user, and that its disk is well",
    Kind.BUSY: "there is no memory for the database {file}: end what takes it",
    Kind.SLOW: "the database file {file} is held by another writer: end whatever else has it open",
    Kind.FULL: "the disk of the database file {file} is full: free some space there",
    Kind.READ_ONLY: "the database file {file} cannot be written to: give this user the right to "
    "write it and its folder, and see that the disk is not mounted read-only",
    Kind.DAMAGED: "the database file {file} is damaged: stop the control plane, then `python -m "
    "control restore BACKUP` puts a back-up in its place and keeps this file aside "
    "(docs/backup.md)",
    Kind.SCHEMA: "a table or column is missing in {file}: stop the control plane, then run `python "
    "-m control migrate`",
}


class DatabaseError(UnavailableError):
    """The database cannot do this now. Nothing of the transaction was kept.

    Attributes:
        kind: how it fails.
        retry_after_s: when trying again may make sense.
    """

    code = "database"

    def __init__(self, message: str, kind: Kind) -> None:
        super().__init__(message)
        self.kind = kind
        self.retry_after_s = _RETRY_AFTER_S.get(kind, 1)


class UnreadableError(TrainmasterError):
    """A stored value cannot be read: somebody changed it by hand, or a disk did."""

    code = "unreadable"
    http_status = 503
    retryable = True


class Faults:
    """How often each kind of failure was met by one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[Kind] = Counter()

    def count(self, kind: Kind) -> None:
        """Count one."""
        with self._lock:
            self._counts[kind] += 1

    def counts(self) -> dict[Kind, int]:
        """Return the number of each kind, 0 for those never met."""
        with self._lock:
            return {kind: self._counts[kind] for kind in Kind}


def translated(error: Exception, *, file: str | None) -> TrainmasterError | None:
    """Return what an exception of the driver or of the pool means; None when it is a bug of ours.

    Args:
        file: the database's file; None for PostgreSQL.
    """
    if isinstance(error, PoolTimeoutError):
        return DatabaseError(
            "all connections of this control plane to its database are in use: it is slow, or too "
            "much is asked of it at once",
            Kind.BUSY,
        )
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(error, RowExistsError) or isinstance(
        cause, psycopg.IntegrityError | sqlite3.IntegrityError
    ):
        return ConflictError("somebody else wrote the same just now: look again")
    if isinstance(cause, sqlite3.Error):
        kind = _of_sqlite(cause)
        words = _SQLITE_WORDS
    elif isinstance(cause, psycopg.Error):
        invalidated = isinstance(error, DBAPIError) and error.connection_invalidated
        kind = _of_postgresql(cause, invalidated=invalidated)
        words = _POSTGRESQL_WORDS
    else:
        return None
    if kind is None:
        return None
    said = " ".join(str(cause).split())
    return DatabaseError(f"{words[kind].format(file=file)} ({said})", kind)


def _of_sqlite(error: sqlite3.Error) -> Kind | None:
    # Extended names begin with the name of their kind: SQLITE_IOERR_FSYNC, SQLITE_CORRUPT_VTAB.
    name = getattr(error, "sqlite_errorname", None) or ""
    for known, kind in _SQLITE_NAMES.items():
        if name == known or name.startswith(f"{known}_"):
            return kind
    text = str(error)
    if text.startswith(("no such table", "no such column")):
        return Kind.SCHEMA
    return Kind.UNREACHABLE if name == "" and isinstance(error, sqlite3.OperationalError) else None


def _of_postgresql(error: psycopg.Error, *, invalidated: bool) -> Kind | None:
    state = error.sqlstate
    if state is None:
        # The server's refusal to let somebody in comes as text alone.
        text = str(error)
        if (
            "too many clients" in text
            or "too many connections" in text
            or "remaining connection slots" in text
        ):
            return Kind.BUSY
        return Kind.UNREACHABLE if invalidated or _is_operational(error) else None
    if state in _STATES:
        return _STATES[state]
    # Class 08: connection; 53: resources; 57P: an operator stopped it; 58: the system below it.
    if state.startswith(("08", "57P", "58")) or invalidated:
        return Kind.UNREACHABLE
    if state.startswith("28") or state == "3D000":
        return Kind.REFUSED
    if state.startswith("53"):
        return Kind.BUSY
    return Kind.UNREACHABLE if isinstance(error, psycopg.OperationalError) else None


def _is_operational(error: psycopg.Error) -> bool:
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
