"""Copies of checkpoints, from the commit that plans them to the chore that removes them."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from control.clock import Clock
from control.db import assignments, copies, listings, tables
from control.db.fleet import chores
from control.db.load import load
from control.db.sql.engine import Database
from control.decision import CheckpointChange
from tests.integration.control.conftest import FakeClock
from tests.integration.control.scene import Scene, event
from trainmaster.wire import PROTOCOL_VERSION

LOCAL, STORE = "file:///fast", "s3://bucket/kept"


@pytest.fixture
def scene(db: Database, clock: FakeClock) -> Scene:
    """A running run that writes to one store and keeps in another, with a checkpoint."""
    made = Scene(db, clock)
    made.sync()
    made.submit()
    with db.write() as connection:
        connection.execute(tables.runs.update().values(copy_root=f"{STORE}/{made.run}"))
    made.begin()
    made.decide(state="running")
    commit = event(
        "checkpoint_committed",
        step=10,
        location=f"{LOCAL}/{made.run}/g1-step10",
        manifest_sha256="sha256:0",
    )
    made.sync(made.batch(0, 10, events=[commit]))
    return made


def shown(scene: Scene) -> dict[str, Any]:
    with scene.db.read() as connection:
        return listings.checkpoint(connection, f"{scene.run}-g1-s10")


def states(scene: Scene) -> dict[str, str]:
    return {copy["tier"]: copy["state"] for copy in shown(scene)["copies"]}


def answer(scene: Scene, kind: str, args: dict[str, Any], **result: Any) -> None:
    with scene.db.write() as connection:
        chore = chores.ask(connection, kind, args, now=scene.clock.now(), run=scene.run)
        chores.answer(connection, "n1", {"id": chore, **result}, now=scene.clock.now())


def busy(scene: Scene) -> bool:
    with scene.db.read() as connection:
        loaded = load(connection, scene.run, now=scene.clock.now(), control_up_since=None)
    assert loaded is not None
    return any(each.busy for found in loaded.snapshot.checkpoints for each in found.copies)


def kinds(scene: Scene) -> list[str]:
    with scene.db.read() as connection:
        found = connection.execute(tables.events.select().order_by(tables.events.c.id)).mappings()
        return [row["kind"] for row in found if row["kind"].startswith("checkpoint_cop")]


def copy(scene: Scene, **result: Any) -> None:
    args = {
        "source": f"{LOCAL}/{scene.run}/g1-step10",
        "target": f"{STORE}/{scene.run}/g1-step10",
        "checkpoint": f"{scene.run}-g1-s10",
        "manifest_sha256": "sha256:0",
    }
    answer(scene, "copy", args, **result)


GONE = {"ok": False, "because": "rank-00000.safetensors: block 0: expected a, seen b"}


def test_a_commit_plans_its_copy_and_a_second_telling_changes_nothing(scene: Scene) -> None:
    assert states(scene) == {"local": "stored", "store": "due"}
    with scene.db.write() as connection:
        copies.begin(connection, scene.row(tables.checkpoints), node="n2")
    assert states(scene) == {"local": "stored", "store": "due"}
    assert shown(scene)["location"] == f"{LOCAL}/{scene.run}/g1-step10"


def test_a_copy_that_cannot_be_made_is_told_once_and_one_that_is_made_stands(scene: Scene) -> None:
    for _ in range(2):
        copy(scene, ok=False, because="s3://bucket: no answer", code="x", retryable=True)
    assert states(scene)["store"] == "due"
    assert shown(scene)["copies"][1]["problem"] == "s3://bucket: no answer"
    assert busy(scene), "it is tried again after a while"
    copy(scene, ok=True, result={"bytes": 5, "files": 2, "seconds": 0.1})
    assert states(scene) == {"local": "stored", "store": "stored"}
    assert not busy(scene)
    assert kinds(scene) == ["checkpoint_copy_failed", "checkpoint_copied"]
    assert shown(scene)["state"] == "committed"


def test_where_the_first_copy_is_bad_the_other_takes_its_place(scene: Scene) -> None:
    copy(scene, ok=True, result={})
    answer(scene, "verify", {"location": f"{LOCAL}/{scene.run}/g1-step10"}, **GONE)
    found = shown(scene)
    assert states(scene) == {"local": "bad", "store": "stored"}
    assert (found["location"], found["problem"], found["verified_at"]) == (
        f"{STORE}/{scene.run}/g1-step10",
        None,
        None,
    )
    assert kinds(scene)[-1] == "checkpoint_copy_bad"
    answer(scene, "verify", {"location": found["location"]}, **GONE)
    assert "block 0" in shown(scene)["problem"], "no copy is left"


def test_a_bad_second_copy_is_no_trouble_of_the_checkpoint(scene: Scene) -> None:
    copy(scene, ok=True, result={})
    answer(scene, "verify", {"location": f"{STORE}/{scene.run}/g1-step10"}, **GONE)
    assert shown(scene)["problem"] is None
    assert states(scene) == {"local": "stored", "store": "bad"}
    assert shown(scene)["location"].startswith(LOCAL)


def test_the_only_copy_is_damaged_when_it_is_to_be_copied(scene: Scene) -> None:
    copy(scene, **GONE, code="integrity", retryable=False)
    assert "block 0" in shown(scene)["problem"]
    assert states(scene) == {"local": "bad", "store": "due"}


def test_a_rank_that_passed_over_a_copy_speaks_for_its_own_node_alone(scene: Scene) -> None:
    copy(scene, ok=True, result={})
    location = f"{LOCAL}/{scene.run}/g1-step10"
    for damaged, node, state in ((False, "n1", "stored"), (True, "n1", "bad")):
        with scene.db.read() as connection:
            assert copies.lies_on(connection, location, node)
            assert not copies.lies_on(connection, location, "n2")
        told = event("copy_passed_over", location=location, because="missing", damaged=damaged)
        start = 20 if damaged else 10
        scene.sync(scene.batch(start, start + 10, events=[told]))
        assert states(scene)["local"] == state


def test_a_generation_is_told_where_else_its_checkpoint_stands(scene: Scene, clock: Clock) -> None:
    copy(scene, ok=True, result={})
    scene.begin(2, parent=1, resumed_from_step=10, checkpoint=f"{scene.run}-g1-s10")
    with scene.db.read() as connection:
        wanted = assignments.wanted_of(
            connection, {"n1": PROTOCOL_VERSION}, assignments.FixedParts()
        )
    assert f"{STORE}/{scene.run}/g1-step10".encode() in wanted["n1"].assignments[0]


def test_what_is_retired_is_retired_everywhere(scene: Scene) -> None:
    change = CheckpointChange(f"{scene.run}-g1-s10", "old", state="retired")
    scene.decide(checkpoints=(deepcopy(change),))
    assert states(scene) == {"local": "retired", "store": "retired"}
    copy(scene, ok=True, result={})
    assert states(scene)["store"] == "retired"
