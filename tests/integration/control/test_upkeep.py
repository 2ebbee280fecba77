"""Checkpoints are read again after a while, and what a crash left in a store is removed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from control.db import effects, tables
from control.db.fleet import chores
from control.db.sql.engine import Database
from control.upkeep import Upkeep
from tests.integration.control.conftest import FakeClock
from tests.integration.control.scene import Scene, event


@pytest.fixture
def scene(db: Database, clock: FakeClock) -> Scene:
    """A run with checkpoints at 10 and 20 in a bucket."""
    made = Scene(db, clock)
    made.sync()
    made.submit()
    made.begin()
    made.decide(state="running")
    commits = [
        event(
            "checkpoint_committed",
            step=step,
            location=f"s3://bucket/{made.run}/g1-step{step}",
            manifest_sha256="sha256:0",
        )
        for step in (10, 20)
    ]
    made.sync(made.batch(0, 10, events=commits))
    with db.write() as connection:
        connection.execute(tables.runs.update().values(checkpoint_root=f"s3://bucket/{made.run}"))
    return made


def upkeep(scene: Scene, **changes: int) -> Upkeep:
    settings = {"scrub_days": 30, "scrub_bytes_per_s": 7, **changes}
    return Upkeep(scene.db, scene.clock, **settings)


def asked(scene: Scene, kind: str) -> list[dict[str, Any]]:
    c = tables.chores.c
    with scene.db.read() as connection:
        found = connection.execute(select(tables.chores).where(c.kind == kind).order_by(c.id))
        return [dict(row) for row in found.mappings()]


def answer(scene: Scene, chore: dict[str, Any], **data: Any) -> None:
    told = effects.Told(
        None,
        None,
        None,
        "n1",
        "agent",
        "chore_done",
        scene.clock.now(),
        {"id": chore["id"], **data},
    )
    with scene.db.write() as connection:
        effects.take_effect(connection, told, now=scene.clock.now())


def test_what_went_unread_for_long_is_read_again_one_at_a_time(
    scene: Scene, clock: FakeClock
) -> None:
    upkeep(scene).scrub()
    assert asked(scene, "scrub") == []
    clock.pass_s(timedelta(days=31).total_seconds())
    upkeep(scene).scrub()
    upkeep(scene).scrub()
    [first] = asked(scene, "scrub")
    assert first["args"]["location"].endswith("g1-step10")
    assert first["args"]["bytes_per_s"] == 7
    answer(scene, first, ok=True, result={"sound": True})
    upkeep(scene).scrub()
    second = asked(scene, "scrub")[-1]
    assert second["args"]["location"].endswith("g1-step20")
    answer(scene, second, ok=False, because="away", code="storage_away", retryable=True)
    upkeep(scene).scrub()
    assert len(asked(scene, "scrub")) == 2, "what is away is not asked for again at once"
    clock.pass_s(timedelta(days=2).total_seconds())
    upkeep(scene).scrub()
    third = asked(scene, "scrub")[-1]
    assert third["args"]["location"].endswith("g1-step20")
    answer(scene, third, ok=False, because="file x: expected a, seen b", code="integrity")
    problems = {row["step"]: row["problem"] for row in scene.rows(tables.checkpoints)}
    assert problems[10] is None
    assert "expected a" in problems[20]


def test_a_folder_is_read_by_a_node_that_trained_there_and_is_heard(
    scene: Scene, clock: FakeClock
) -> None:
    with scene.db.write() as connection:
        connection.execute(tables.checkpoints.update().values(location="file:///c/g1-step10"))
    clock.pass_s(timedelta(days=31).total_seconds())
    upkeep(scene).scrub()
    assert asked(scene, "scrub") == []
    scene.sync()
    upkeep(scene).scrub()
    assert [each["node"] for each in asked(scene, "scrub")] == ["n1"]


def test_scrubbing_may_be_switched_off(scene: Scene) -> None:
    assert len(upkeep(scene, scrub_days=0).all()) == 1
    assert len(upkeep(scene).all()) == 2


def test_after_an_attempt_its_store_is_looked_through_and_what_nobody_owns_goes(
    scene: Scene, clock: FakeClock
) -> None:
    upkeep(scene).look_through()
    assert asked(scene, "list") == [], "nothing has ended yet"
    with scene.db.write() as connection:
        connection.execute(tables.ranks.update().values(state="exited"))
        connection.execute(tables.attempts.update().values(ended_at=clock.now()))
        connection.execute(
            tables.checkpoints.update()
            .where(tables.checkpoints.c.step == 10)
            .values(state="retired")
        )
        under_way = {"location": f"s3://bucket/{scene.run}/g1-step25"}
        chores.ask(connection, "retire", under_way, now=clock.now(), run=scene.run)
    clock.pass_s(61)
    for _ in range(2):
        upkeep(scene).look_through()
    [look] = asked(scene, "list")
    assert (look["args"], look["node"]) == ({"root": f"s3://bucket/{scene.run}"}, None)
    folders = [
        {"name": "g1-step10", "committed": True, "bytes": 0},
        {"name": "g1-step20", "committed": True, "bytes": 0},
        {"name": "g1-step25", "committed": False, "bytes": 1},
        {"name": "g1-step30", "committed": False, "bytes": 7},
        {"name": "g9-step30", "committed": False, "bytes": 7},
        {"name": "other", "committed": False, "bytes": 7},
        {"name": 5},
        "nonsense",
    ]
    answer(scene, look, ok=True, result={"folders": folders})
    going = [each["args"]["location"].rpartition("/")[2] for each in asked(scene, "retire")]
    assert going == ["g1-step25", "g1-step10", "g1-step30"]
    [told] = [each for each in scene.rows(tables.events) if each["kind"] == "leftovers_found"]
    assert told["data"]["names"] == ["g1-step10", "g1-step30"]
    assert told["data"]["bytes"] == 7
    upkeep(scene).look_through()
    assert len(asked(scene, "list")) == 1
    clock.pass_s(timedelta(days=1, minutes=1).total_seconds())
    upkeep(scene).look_through()
    assert len(asked(scene, "list")) == 2, "once a day for a while"


def test_what_was_done_long_ago_is_forgotten_but_for_the_newest_look_through_a_store(
    scene: Scene, db: Database, clock: FakeClock
) -> None:
    for _ in range(2):
        clock.pass_s(60)
        with db.write() as connection:
            for kind in ("list", "retire", "verify"):
                chores.ask(connection, kind, {"n": 1}, now=clock.now(), run=scene.run)
            done = {"state": chores.DONE, "done_at": clock.now()}
            connection.execute(tables.chores.update().values(**done))
    with db.write() as connection:
        chores.ask(connection, "retire", {"n": 1}, now=clock.now(), run=scene.run)

    def left(after: timedelta) -> list[tuple[str, str]]:
        with db.write() as connection:
            chores.forget(connection, now=clock.now() + after)
            c = tables.chores.c
            found = connection.execute(select(c.kind, c.state).where(c.run == scene.run))
            return sorted((kind, state) for kind, state in found)

    assert len(left(chores.KEEP - timedelta(hours=1))) == 7
    assert left(chores.KEEP + timedelta(hours=1)) == [("list", "done"), ("retire", "waiting")]
