"""The nodes as turns see them: their own as they are, the others as they were a second ago."""

from __future__ import annotations

import pytest

from control.db import tables
from control.db.fleet.nodes import Fleet
from control.db.sql.engine import Database
from control.snapshot import Node
from tests.integration.control.conftest import FakeClock
from tests.integration.control.scene import Scene


@pytest.fixture
def scene(db: Database, clock: FakeClock) -> Scene:
    made = Scene(db, clock)
    for node in ("n3", "n1", "n2"):
        made.sync(node=node)
    made.submit()
    made.begin()
    return made


def seen(scene: Scene, fleet: Fleet, run: str | None = None) -> dict[str, Node]:
    with scene.db.read() as connection:
        found = fleet.seen_by(connection, run or scene.run, ["n1"], scene.clock.now())
    assert [node.id for node in found] == sorted(node.id for node in found)
    return {node.id: node for node in found}


def test_what_has_changed_of_its_own_node_is_seen_at_once_and_of_others_a_second_later(
    scene: Scene,
) -> None:
    fleet = Fleet()
    assert seen(scene, fleet)["n1"].held_here == {0, 1}
    for node in ("n1", "n2"):
        scene.sync(node=node, boot="b2")
    assert {name: node.boot for name, node in seen(scene, fleet).items()} == {
        "n1": "b2",
        "n2": "b1",
        "n3": "b1",
    }
    scene.clock.pass_s(1)
    assert seen(scene, fleet)["n2"].boot == "b2"


def test_slots_that_were_taken_are_seen_once_it_forgets(scene: Scene) -> None:
    fleet = Fleet()
    first = scene.run
    seen(scene, fleet)
    scene.submit()
    scene.begin(node="n2")
    assert seen(scene, fleet, first)["n2"].taken == frozenset()
    fleet.forget()
    assert seen(scene, fleet, first)["n2"].taken == {0, 1}


def test_a_node_of_its_own_is_seen_however_long_it_has_been_silent(scene: Scene) -> None:
    scene.clock.pass_s(8 * 86_400)
    assert list(seen(scene, Fleet())) == ["n1"]
    with scene.db.write() as connection:
        connection.execute(tables.slots.delete())
    assert list(seen(scene, Fleet())) == ["n1"]
