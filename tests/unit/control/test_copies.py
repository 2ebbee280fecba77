"""Which checkpoint is copied next, and where its bytes are removed."""

from __future__ import annotations

from dataclasses import replace

from control.checkpoints.copies import removals
from control.decide import decide
from control.snapshot import Checkpoint, Copy
from tests.fakes import snapshots as at
from tests.fakes.snapshots import NOW, change, checkpoint, running


def tiered(step: int, state: str = "due", *, busy: bool = False, **changes: object) -> Checkpoint:
    made = checkpoint(step, "committed")
    local = Copy("local", made.location, "stored", "oak")
    kept = Copy("store", f"s3://bucket/alpha/g1-step{step}", state, None, busy)
    return replace(made, copies=(local, kept), **changes)


def copied(*checkpoints: Checkpoint, **changes: object) -> list[str]:
    snapshot = running(checkpoints=checkpoints, attempts=(at.attempt(last_step=100),), **changes)
    return [
        each.args["checkpoint"] for each in decide(snapshot, now=NOW).chores if each.kind == "copy"
    ]


def test_the_newest_that_is_due_is_copied_by_the_node_that_wrote_it() -> None:
    snapshot = running(
        checkpoints=(tiered(80), tiered(90), tiered(100, "stored")),
        attempts=(at.attempt(last_step=100),),
    )
    [chore] = [each for each in decide(snapshot, now=NOW).chores if each.kind == "copy"]
    assert chore.args["checkpoint"] == "alpha-g1-s90"
    assert chore.args["target"] == "s3://bucket/alpha/g1-step90"
    assert chore.args["source"] == snapshot.checkpoints[1].location
    assert chore.node == "oak"


def test_one_is_copied_at_a_time_and_a_failed_one_is_not_hurried() -> None:
    assert copied(tiered(80, busy=True), tiered(90)) == []


def test_what_is_quarantined_is_not_copied() -> None:
    assert copied(tiered(90, problem="file x: expected a, seen b")) == []


def test_nobody_but_its_node_can_copy() -> None:
    snapshot = running(checkpoints=(tiered(90),), attempts=(at.attempt(last_step=100),))
    without = change(snapshot, nodes=())
    assert not [each for each in decide(without, now=NOW).chores if each.kind == "copy"]


def test_all_copies_are_removed_each_where_it_lies() -> None:
    snapshot = running(attempts=(at.attempt(last_step=100),))
    chores = list(removals(tiered(10, "stored"), snapshot))
    assert [(each.args["location"][:5], each.node) for each in chores] == [
        ("file:", "oak"),
        ("s3://", None),
    ]
    assert len(list(removals(checkpoint(10), snapshot))) == 1


def test_a_checkpoint_that_is_being_copied_is_not_retired() -> None:
    found = [tiered(step, "stored") for step in range(20, 101, 10)]
    snapshot = running(
        checkpoints=(tiered(10, busy=True), *(replace(each, state="trusted") for each in found)),
        attempts=(at.attempt(last_step=100),),
        spec=at.spec(checkpoint={"keep_last": 1, "keep_best": 0}),
    )
    gone = {each.id for each in decide(snapshot, now=NOW).checkpoints if each.state == "retired"}
    assert "alpha-g1-s10" not in gone
    assert "alpha-g1-s20" in gone
