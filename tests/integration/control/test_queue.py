"""Many runs wait for few slots: their turns cost little, and what is asked of them is soon done."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest
from sqlalchemy import event

from control.db import asking, tables
from control.db.fleet import chores
from control.db.sql.engine import Database
from control.reconciler import Reconciler
from tests.fakes.snapshots import WORKLOAD
from tests.integration.control.conftest import FakeClock
from tests.integration.control.scene import Scene, plan, spec

WAITING = 30


@pytest.fixture
def scene(db: Database, clock: FakeClock) -> Scene:
    """One run on the only node, and thirty that wait."""
    made = Scene(db, clock)
    made.sync()
    first = made.submit(name="first")
    made.begin(slots=(0, 1, 2, 3), run=first, under=plan(replicas=2))
    asked = spec()
    args = chores.workload_args(asked.workload, asked.params, asked.data.source)
    made.insert(
        tables.workloads,
        key=chores.digest(args),
        info=WORKLOAD.model_dump(mode="json"),
        problems=[],
        described_at=clock.now(),
        node="n1",
    )
    for number in range(WAITING):
        clock.pass_s(0.001)
        made.submit(name=f"waits-{number}")
    made.run = first
    Reconciler(db, clock).tick()
    return made


def waiting(scene: Scene) -> list[str]:
    rows = scene.rows(tables.runs, state="queued")
    return [row["id"] for row in sorted(rows, key=lambda row: row["created_at"])]


def test_the_further_back_a_run_is_the_less_often_it_is_looked_at(scene: Scene) -> None:
    reconciler, turns = Reconciler(scene.db, scene.clock), 0
    statements = list[str]()
    told = event.listens_for(scene.db.engine, "before_cursor_execute")
    told(lambda *said: statements.append(str(said[2])))
    for _ in range(20):
        scene.clock.pass_s(0.5)
        turns += reconciler.tick()
    # In ten seconds: twenty of the first, ten of the second, ...; not twenty of each.
    assert 20 < turns < 20 * WAITING / 4
    assert len(statements) < 25 * turns, Counter(statements).most_common(3)


def test_all_that_wait_can_be_stopped_at_once(scene: Scene) -> None:
    for run in waiting(scene):
        with scene.db.write() as connection:
            ask = asking.Ask("stop", {}, "ann")
            asking.ask(connection, run, ask, now=scene.clock.now())
    Reconciler(scene.db, scene.clock).tick()
    assert waiting(scene) == []


def test_those_at_the_front_are_looked_at_when_one_before_them_leaves(scene: Scene) -> None:
    Reconciler(scene.db, scene.clock).tick()
    front, back = waiting(scene)[1], waiting(scene)[-1]
    with scene.db.write() as connection:
        asking.ask(
            connection, waiting(scene)[0], asking.Ask("stop", {}, "ann"), now=scene.clock.now()
        )
    Reconciler(scene.db, scene.clock).tick()
    looks = {row["id"]: row["next_look_at"] for row in scene.rows(tables.runs)}
    assert looks[front] <= scene.clock.now()
    assert looks[back] > scene.clock.now() + timedelta(seconds=5)
