"""What a database says when it fails, and what is made of it."""

from __future__ import annotations

import sqlite3

import psycopg
import pytest
from psycopg import errors
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from control.db.sql.faults import DatabaseError, Kind, translated
from trainmaster.errors import ConflictError, UnavailableError


@pytest.mark.parametrize(
    ("state", "kind", "mend"),
    [
        ("08006", Kind.UNREACHABLE, "see that it runs"),
        ("25006", Kind.READ_ONLY, "primary"),
        ("25P03", Kind.SLOW, "pg_stat_activity"),
        ("28P01", Kind.REFUSED, "grant"),
        ("3D000", Kind.REFUSED, "grant"),
        ("40001", Kind.CLASH, "the same again"),
        ("40P01", Kind.CLASH, "the same again"),
        ("42501", Kind.REFUSED, "grant"),
        ("42703", Kind.SCHEMA, "migrate"),
        ("42P01", Kind.SCHEMA, "migrate"),
        ("53100", Kind.FULL, "free some space"),
        ("53200", Kind.BUSY, "max_connections"),
        ("53300", Kind.BUSY, "max_connections"),
        ("55P03", Kind.SLOW, "pg_stat_activity"),
        ("57014", Kind.SLOW, "pg_stat_activity"),
        ("57P01", Kind.UNREACHABLE, "see that it runs"),
        ("57P02", Kind.UNREACHABLE, "see that it runs"),
        ("57P03", Kind.UNREACHABLE, "see that it runs"),
        ("58030", Kind.DAMAGED, "backup.md"),
        ("XX001", Kind.DAMAGED, "backup.md"),
    ],
)
def test_each_state_of_postgresql_is_named_with_its_mend(state: str, kind: Kind, mend: str) -> None:
    raw = errors.lookup(state)("said so")
    wrapped = DBAPIError("SELECT 1", None, raw)
    for error in (raw, wrapped):
        meant = translated(error, file=None)
        assert isinstance(meant, DatabaseError)
        assert (meant.kind, meant.code, meant.http_status) == (kind, "database", 503)
        assert mend in meant.message
        assert meant.message.endswith("(said so)")
        assert meant.retry_after_s >= 1


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ('FATAL:  too many connections for role "tm"', Kind.BUSY),
        ("FATAL:  sorry, too many clients already: too many connections", Kind.BUSY),
        ("FATAL:  remaining connection slots are reserved for superusers", Kind.BUSY),
        ("connection refused", Kind.UNREACHABLE),
        ("FATAL:  the database system is starting up", Kind.UNREACHABLE),
    ],
)
def test_a_server_that_lets_nobody_in_says_it_in_words_alone(said: str, kind: Kind) -> None:
    meant = translated(psycopg.OperationalError(said), file=None)
    assert isinstance(meant, DatabaseError)
    assert meant.kind == kind


def test_a_pool_without_a_free_connection_is_not_a_bug_of_ours() -> None:
    meant = translated(PoolTimeoutError("QueuePool limit of size 20"), file=None)
    assert isinstance(meant, UnavailableError)
    assert "in use" in meant.message


@pytest.mark.parametrize("raw", [errors.UniqueViolation("a"), sqlite3.IntegrityError("a")])
def test_a_row_that_is_already_there_is_a_conflict(raw: Exception) -> None:
    assert isinstance(translated(raw, file="a.db"), ConflictError)


@pytest.mark.parametrize(
    "raw",
    [
        errors.SyntaxError("a"),
        errors.NumericValueOutOfRange("a"),
        sqlite3.ProgrammingError("a"),
    ],
)
def test_what_is_our_own_fault_stays_one(raw: Exception) -> None:
    assert translated(raw, file="a.db") is None
