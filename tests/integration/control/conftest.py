"""A control plane's database, on SQLite and on PostgreSQL: every test here runs on both."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from control.db.sql import schema
from control.db.sql.engine import Database
from tests.services.postgres import PostgresCluster


class FakeClock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self._now = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

    def now(self) -> datetime:
        return self._now

    def pass_s(self, seconds: float) -> datetime:
        self._now += timedelta(seconds=seconds)
        return self._now


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "trainmaster.db"
    db = Database(f"sqlite:///{path}")
    schema.upgrade(db)
    db.close()
    return path


def _migrated(url: str) -> None:
    db = Database(url)
    schema.upgrade(db)
    db.close()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a database with the current schema, for this test alone."""
    if request.param == "sqlite":
        template: Path = request.getfixturevalue("sqlite_template")
        path = tmp_path / "trainmaster.db"
        path.write_bytes(template.read_bytes())
        yield f"sqlite:///{path}"
        return
    cluster: PostgresCluster = request.getfixturevalue("postgres_cluster")
    name = cluster.create_database(template=cluster.template("control", _migrated))
    yield cluster.url(name)
    cluster.drop_database(name)


@pytest.fixture
def db(database_url: str) -> Iterator[Database]:
    opened = Database(database_url)
    yield opened
    opened.close()
