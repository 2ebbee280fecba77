"""How long an account is good enough: a while, and no longer than the state it was made in."""

from __future__ import annotations

import pytest

from control.db.accounts import Accounts
from control.db.sql.engine import Database
from tests.integration.control.conftest import FakeClock
from tests.integration.control.scene import Scene, event


def test_an_account_is_kept_for_a_while_but_not_beyond_the_end_of_the_run(
    db: Database, clock: FakeClock
) -> None:
    scene = Scene(db, clock)
    scene.sync()
    scene.submit()
    scene.begin()
    scene.decide(state="running")
    ticks = iter((0.0, 1.0, 20.9, 21.1, 22.0, 23.0, 24.0))  # a second to make one: 20 s it is kept
    accounts = Accounts(lambda: next(ticks))

    def wall_s() -> float:
        with db.read() as connection:
            return accounts.of(connection, scene.run, now=clock.now()).goodput["wall_s"]

    first = wall_s()
    clock.pass_s(5)
    assert wall_s() == first
    assert wall_s() == first + 5, "it is not kept for ever"
    clock.pass_s(5)
    scene.decide(state="succeeded")
    clock.pass_s(5)
    assert wall_s() == first + 10


def test_reading_a_checkpoint_back_is_counted_as_the_rank_timed_it(
    db: Database, clock: FakeClock
) -> None:
    scene = Scene(db, clock)
    scene.sync()
    scene.submit()
    scene.begin()
    clock.pass_s(10)
    told = event("checkpoint_restored", checkpoint="c", step=5, source="store", seconds=4.0)
    scene.sync(scene.batch(0, 10, events=[told.model_copy(update={"at": clock.now()})]))
    scene.decide(state="running")
    clock.pass_s(1)
    with db.read() as connection:
        spent = Accounts().of(connection, scene.run, now=clock.now()).goodput
    assert (spent["restoring_s"], spent["wall_s"]) == (4, 11)


@pytest.mark.parametrize("seconds", ["x" * 3000, "NaN", -1, 1e308, 10**400, True, [], {}, None])
def test_a_duration_that_is_none_spoils_no_account(
    db: Database, clock: FakeClock, seconds: object
) -> None:
    scene = Scene(db, clock)
    scene.sync()
    scene.submit()
    scene.begin()
    clock.pass_s(10)
    told = event("checkpoint_restored", step=5, seconds=seconds)
    scene.sync(scene.batch(0, 10, events=[told.model_copy(update={"at": clock.now()})]))
    with db.read() as connection:
        spent = Accounts().of(connection, scene.run, now=clock.now()).goodput
    assert (spent["restoring_s"], spent["wall_s"]) == (0, 10)
