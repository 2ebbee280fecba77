"""The revisions make the tables that the code knows; older code refuses a newer schema."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from control.db.sql import schema
from control.db.sql.engine import Database
from trainmaster.errors import UnavailableError, UserError


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    url = f"sqlite:///{tmp_path}/a.db"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    db = Database(url)
    yield db
    db.close()


def test_the_revisions_and_the_tables_in_the_code_are_the_same(db: Database) -> None:
    with db.write() as connection:
        assert schema.differences(connection) == ""


def test_an_empty_database_is_brought_up_to_date_once(empty: Database) -> None:
    with pytest.raises(schema.SchemaError, match="migrate"):
        schema.require_current(empty)
    assert schema.upgrade(empty) is True
    assert schema.upgrade(empty) is False
    schema.require_current(empty)


def test_a_newer_schema_is_refused(db: Database) -> None:
    with db.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    for touch in (schema.upgrade, schema.require_current):
        with pytest.raises(schema.SchemaError, match="schema is newer"):
            touch(db)


def test_a_failed_write_leaves_nothing(db: Database) -> None:
    insert = text(
        "INSERT INTO tokens (id, sha256, name, role, created_at, created_by) "
        "VALUES ('a', 'a', 'a', 'viewer', '2026-01-01 00:00:00', 'a')"
    )
    with pytest.raises(ZeroDivisionError), db.write() as connection:
        connection.execute(insert)
        raise ZeroDivisionError
    with db.read() as connection:
        assert connection.scalar(text("SELECT count(*) FROM tokens")) == 0


def test_a_read_sees_one_state(db: Database) -> None:
    count = text("SELECT count(*) FROM tokens")
    insert = text(
        "INSERT INTO tokens (id, sha256, name, role, created_at, created_by) "
        "VALUES ('a', 'a', 'a', 'viewer', '2026-01-01 00:00:00', 'a')"
    )
    with db.read() as reading:
        assert reading.scalar(count) == 0
        with db.write() as writing:
            writing.execute(insert)
        assert reading.scalar(count) == 0
    with db.read() as reading:
        assert reading.scalar(count) == 1


@pytest.mark.parametrize("url", ["mysql://a/b", "nonsense", "postgresql+asyncpg://a/b"])
def test_an_address_of_no_use_is_refused_with_a_sentence(url: str) -> None:
    with pytest.raises(UserError, match=r"postgresql|address"):
        Database(url)


def test_a_database_out_of_reach_is_unavailable() -> None:
    db = Database("postgresql+psycopg://nobody@127.0.0.1:1/nowhere")
    with pytest.raises(UnavailableError), db.read():
        pass
    db.close()
