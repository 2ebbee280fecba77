"""Of several control planes on one PostgreSQL one leads; one that slept through its end is told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import psycopg
import pytest
from sqlalchemy import select, text

from control.db import tables
from control.db.sql import schema
from control.db.sql.engine import Database
from control.leadership import LOCK_KEY, Fence, Leadership, fence_of
from tests.services.postgres import PostgresCluster
from trainmaster.errors import ConflictError


def until(look: Callable[[], object], within_s: float = 30) -> None:
    deadline = time.monotonic() + within_s
    while not look():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


class Term:
    """Periodic work that only counts who works."""

    def __init__(self, fence: Fence) -> None:
        self.fence = fence
        self.works = False

    def start(self) -> None:
        self.works = True

    def stop(self) -> None:
        self.works = False


class Candidate:
    """One control plane that runs for the lead."""

    def __init__(self, db: Database) -> None:
        self.terms: list[Term] = []
        self.leadership = Leadership(db, self._begin)
        self.leadership.start()

    def _begin(self, fence: Fence) -> Term:
        self.terms.append(Term(fence))
        return self.terms[-1]

    @property
    def works(self) -> bool:
        return any(term.works for term in self.terms)


@pytest.fixture
def shared(postgres_cluster: PostgresCluster) -> Iterator[Database]:
    def migrated(url: str) -> None:
        db = Database(url)
        schema.upgrade(db)
        db.close()

    name = postgres_cluster.create_database(template=postgres_cluster.template("control", migrated))
    db = Database(postgres_cluster.url(name))
    yield db
    db.close()
    postgres_cluster.drop_database(name)


def end_leaders_session(db: Database) -> None:
    dsn = db.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted"
            " AND objid = %s AND database = (SELECT oid FROM pg_database WHERE datname ="
            " current_database())",
            (LOCK_KEY & 0xFFFFFFFF,),
        )


def test_one_leads_and_when_it_loses_its_session_exactly_one_leads_again(shared: Database):
    candidates = [Candidate(shared) for _ in range(3)]
    try:
        until(lambda: sum(each.works for each in candidates) == 1)
        [first] = [each for each in candidates if each.works]
        end_leaders_session(shared)
        until(lambda: not first.terms[0].works)
        until(lambda: sum(each.works for each in candidates) == 1)
    finally:
        for each in candidates:
            each.leadership.stop()
    assert not any(each.works for each in candidates)


def test_a_leader_that_stops_in_good_order_is_followed(shared: Database):
    first = Candidate(shared)
    until(lambda: first.works)
    second = Candidate(shared)
    first.leadership.stop()
    until(lambda: second.works)
    second.leadership.stop()


def test_who_slept_through_the_end_of_its_term_changes_nothing_afterwards(shared: Database):
    first = Candidate(shared)
    until(lambda: first.works)
    first.leadership.stop()
    second = Candidate(shared)
    until(lambda: second.works)
    with shared.write() as connection:
        second.terms[0].fence(connection)
    with pytest.raises(ConflictError, match="another control plane"), shared.write() as connection:
        connection.execute(text("DELETE FROM login_codes"))
        first.terms[0].fence(connection)
    second.leadership.stop()


def test_each_term_has_a_number_of_its_own(shared: Database):
    for epoch in (1, 2):
        candidate = Candidate(shared)
        until(lambda candidate=candidate: candidate.works)
        with shared.read() as connection:
            assert connection.scalar(select(tables.leadership.c.epoch)) == epoch
            fence_of(epoch)
        candidate.leadership.stop()
