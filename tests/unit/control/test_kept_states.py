"""States that nodes keep in memory alone: when they are used, and what else is left alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from control.checkpoints.choice import choose_before, choose_newest
from control.checkpoints.judging import interval
from control.checkpoints.memory import is_held
from control.checkpoints.retention import verdicts
from control.decide import decide
from control.turn import Turn
from tests.fakes import snapshots as at
from tests.fakes.snapshots import NOW, checkpoint, running


def kept(step: int):
    return checkpoint(step, "committed", location=f"memory://alpha/g1-step{step}", verified_at=None)


def on(*names: str):
    """An attempt with one rank of a pipeline of two stages on each of two nodes."""
    plan = at.plan()
    homes = [each.model_copy(update={"nodes": names}) for each in plan.pipelines]
    return at.attempt(plan=plan.model_copy(update={"pipelines": tuple(homes)}), last_step=60)


def test_after_an_exit_without_numeric_evidence_it_is_used_while_its_node_holds_it():
    snapshot = running(checkpoints=(checkpoint(40), kept(50)))
    choice = choose_newest(snapshot)
    assert choice.step == 50
    assert "which nodes keep in memory" in choice.because
    gone = choose_newest(replace(snapshot, nodes=()))
    assert gone.step == 40
    assert gone.rejected[0].why == "was kept in memory alone, by nodes that are gone or began anew"


def test_an_agent_that_began_anew_holds_nothing():
    snapshot = running(checkpoints=(kept(50),))
    ranks = tuple(replace(rank, boot="an earlier one") for rank in snapshot.ranks)
    assert is_held(snapshot, kept(50))
    assert not is_held(replace(snapshot, ranks=ranks), kept(50))


def test_one_of_two_nodes_may_be_lost_for_the_other_holds_both_parts():
    oak, elm = at.node("oak"), at.node("elm")
    snapshot = replace(running(attempts=(on("oak", "elm"),)), nodes=(oak, elm), ranks=())
    silent = replace(elm, last_seen_at=NOW - timedelta(seconds=60))
    assert is_held(snapshot, kept(50))
    assert is_held(replace(snapshot, nodes=(oak, silent)), kept(50))
    assert is_held(replace(snapshot, nodes=(oak,)), kept(50))
    assert not is_held(replace(snapshot, nodes=()), kept(50))


def test_numeric_trouble_is_followed_by_one_that_was_read_back():
    snapshot = running(checkpoints=(checkpoint(40), kept(50)))
    choice = choose_before(snapshot, 55)
    assert choice.step == 40
    assert choice.rejected[0].why == "is kept in memory alone, where nobody has read it back"


def test_it_is_neither_read_back_nor_promoted_nor_retired_and_counts_for_nothing():
    stored = tuple(checkpoint(step) for step in (10, 20, 30, 40))
    before = running(checkpoints=stored)
    with_kept = replace(before, checkpoints=(*stored, kept(50)))
    decision = decide(with_kept, now=NOW)
    assert all("memory:" not in str(chore.args) for chore in decision.chores)
    assert "alpha-g1-s50" not in {change.id for change in decision.checkpoints}
    told = {each.checkpoint.id: each for each in verdicts(Turn(with_kept, NOW))}
    alone = told.pop("alpha-g1-s50")
    assert not alone.goes
    assert "memory alone" in alone.because
    unchanged = {each.checkpoint.id: each.goes for each in verdicts(Turn(before, NOW))}
    assert {name: each.goes for name, each in told.items()} == unchanged


def test_an_interval_is_as_asked_or_as_it_was_last():
    asked = at.spec(checkpoint={"every_steps": 7})
    assert interval(asked).every_steps == 7
    assert interval(asked).told == "A checkpoint every 7 steps, as asked. Usual are 100 to 1000."
    auto = at.spec(checkpoint={"every_steps": "auto"})
    last = replace(at.attempt(3), checkpoint_every=33)
    assert interval(auto, last).every_steps == min(33, auto.train.steps)
    assert "as in generation 3" in interval(auto, last).because
