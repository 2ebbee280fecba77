"""Where ranks go, what a run waits for, and what the waiting says."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control import scheduler
from control.decide import decide
from control.planner import automatic
from control.scheduler import Placed, Waiting
from tests.fakes import snapshots as at
from tests.fakes.ring import Ring
from tests.fakes.snapshots import NOW, change, node, plan, request, running
from trainmaster.spec import PlacementSpec

ONE = PlacementSpec(nodes=1)
TWO = PlacementSpec(nodes=2)


def homes(placed) -> list[str]:
    assert isinstance(placed, Placed), placed
    return [each.node for each in placed.placements]


def place(plan_, placement, *nodes, **args):
    return scheduler.place(plan_, placement, nodes, now=NOW, **args)


def queued(**changes):
    return running(
        state="queued", attempts=(), ranks=(), checkpoints=(), windows={}, generation=0, **changes
    )


def test_ranks_take_free_slots_of_one_node():
    placed = place(plan(), ONE, node("oak", 6, taken=frozenset({0, 2})))
    assert [each.slot for each in placed.placements] == [1, 3, 4, 5]
    assert placed.plan.pipelines[0].nodes == ("oak", "oak")


def test_a_pipeline_stays_on_one_node():
    assert homes(place(plan(), TWO, node("oak"), node("elm"))) == ["elm", "elm", "oak", "oak"]


def test_a_pipeline_deeper_than_a_node_is_cut_and_ranks_stay_contiguous():
    deep = plan(replicas=1, stages=4, micro_batch=8)
    assert homes(place(deep, TWO, node("elm", 2), node("oak", 2))) == ["elm", "elm", "oak", "oak"]


def test_nodes_used_before_are_preferred():
    assert homes(place(plan(), ONE, node("elm"), node("oak"), preferred={"oak"})) == ["oak"] * 4


def test_fewer_nodes_are_taken_where_the_spec_allows():
    lenient = PlacementSpec(nodes=2, min_nodes=1)
    assert homes(place(plan(), lenient, node("oak"))) == ["oak"] * 4


def test_where_nothing_limits_them_as_few_nodes_are_taken_as_hold_the_plan():
    free = PlacementSpec()
    assert homes(place(plan(), free, node("elm"), node("oak"))) == ["elm"] * 4
    small = node("elm", 2), node("oak", 2)
    assert homes(place(plan(), free, *small)) == ["elm", "elm", "oak", "oak"]
    assert "4 slots on any nodes" in place(plan(), free, small[0]).because
    assert scheduler.fits(plan(), free, small) is None
    assert "1 node offers at most 2" in scheduler.fits(plan(), free, small[:1]).message


def test_named_nodes_are_honoured():
    asked = plan(
        micro_batch=8,
        pipelines=[
            {"layers": [4, 4], "micro_batches": 4, "nodes": ["oak", "elm"]},
            {"layers": [4, 4], "micro_batches": 4, "nodes": ["elm", "oak"]},
        ],
    )
    assert homes(place(asked, TWO, node("oak"), node("elm"))) == ["oak", "elm", "elm", "oak"]
    waiting = place(asked, TWO, node("oak"))
    assert "node elm" in waiting.because


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ((), "no agent has connected yet"),
        ((node(cordoned=True),), "oak is cordoned"),
        ((node(silent_s=5),), "oak is not in contact"),
        ((node(slots=4, taken=frozenset({0, 1})),), "largest free: node oak has 2"),
        ((node(slots=2),), "Even empty, the nodes present could not hold it: 2 slots"),
    ],
)
def test_waiting_says_for_what(nodes, told):
    waiting = place(plan(), ONE, *nodes)
    assert isinstance(waiting, Waiting)
    assert told in waiting.because


def test_labels_must_match():
    wanted = PlacementSpec(labels={"room": "a"})
    assert homes(place(plan(), wanted, node("oak", labels={"room": "a"})))
    assert "room=a" in place(plan(), wanted, node("oak", labels={"room": "b"})).because


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=5),
    st.integers(1, 4),
    st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2), (4, 2)]),
)
def test_each_rank_has_a_slot_of_its_own(slots, num_nodes, shape):
    replicas, stages = shape
    asked = plan(replicas=replicas, stages=stages, micro_batch=4)
    nodes = [node(f"n{number}", count) for number, count in enumerate(slots)]
    placed = scheduler.place(
        asked, PlacementSpec(nodes=num_nodes), nodes, now=NOW, preferred={"n1"}
    )
    if isinstance(placed, Waiting):
        assert placed.because
        return
    taken = [(each.node, each.slot) for each in placed.placements]
    assert [each.rank for each in placed.placements] == list(range(asked.world_size))
    assert len(set(taken)) == asked.world_size
    assert all(slot < slots[int(home[1:])] for home, slot in taken)
    assert len({home for home, _ in taken}) <= num_nodes
    order = [home for home, _ in taken]
    assert sum(a != b for a, b in itertools.pairwise(order)) == len(set(order)) - 1


def test_a_plan_too_big_is_refused_with_the_numbers_and_a_proposal():
    problem = scheduler.fits(plan(), ONE, [node("oak", 2), node("elm", 2)])
    assert "4 ranks" in problem.message
    assert "1 node offers at most 2 slots" in problem.message
    assert "ask for more nodes" in problem.message
    assert scheduler.fits(plan(), TWO, [node("oak", 2), node("elm", 2)]) is None
    assert scheduler.fits(plan(), ONE, []) is None


def test_a_queued_run_starts_when_there_is_room():
    decision = decide(queued(nodes=(node(),)), now=NOW)
    assert decision.state == "starting"
    assert (decision.new_attempt.generation, decision.new_attempt.cause_kind) == (1, "start")
    assert decision.new_attempt.checkpoint_every == 10


def test_a_queued_run_says_what_it_waits_for_and_says_it_once():
    ring = Ring(queued(nodes=(node(slots=2),)))
    [waiting] = ring.settle()
    assert waiting.state is None
    assert waiting.because.startswith("Needs 4 slots on 1 node")


def test_without_a_description_the_run_waits_for_a_node_to_give_one():
    ring = Ring(queued(workload=None, nodes=(node(),)))
    [waiting] = ring.settle()
    assert waiting.because == "Waiting for a node to describe the workload."
    assert [each.kind for each in waiting.chores] == ["describe"]


def test_a_workload_that_cannot_be_used_fails_the_run():
    problems = ("params: layers must be at least 1",)
    decision = decide(queued(workload=None, describe_problems=problems), now=NOW)
    assert (decision.state, decision.code) == ("failed", "bad_spec")
    assert problems[0] in decision.because


def test_a_plan_that_does_not_fit_the_workload_fails_with_the_numbers():
    wide = at.spec(parallel={"replicas": 1, "stages": 9})
    decision = decide(queued(spec=wide, nodes=(node(),)), now=NOW)
    assert (decision.state, decision.code) == ("failed", "bad_spec")
    assert "9 stages for 8 layers" in decision.because


def test_those_before_it_in_the_queue_go_first_and_may_be_passed_when_they_do_not_fit():
    snapshot = queued(queued_before=2, nodes=(node(),))
    young = change(snapshot)
    young = replace(young, run=replace(young.run, created_at=NOW - timedelta(seconds=5)))
    assert "2 runs are before it" in decide(young, now=NOW).because
    assert decide(snapshot, now=NOW).state == "starting"


def test_who_has_many_before_it_is_looked_at_less_often():
    waits = [decide(queued(queued_before=n), now=NOW).next_look_at - NOW for n in (0, 9, 1000)]
    assert [each.total_seconds() for each in waits] == [0.5, 5.0, 30.0]


def test_auto_is_as_many_equal_replicas_as_the_batch_allows():
    auto = at.spec(parallel="auto")
    choice = automatic.choose(auto, at.WORKLOAD, [(node(slots=6), 6)])
    assert (choice.plan.replicas, choice.plan.stages) == (4, 1)
    assert "4 equal replicas" in choice.because
    decision = decide(queued(spec=auto, nodes=(node(slots=6),)), now=NOW)
    assert decision.new_attempt.plan.replicas == 4


def test_auto_keeps_its_plan_when_it_restarts_and_makes_another_when_nodes_are_gone():
    auto = at.spec(parallel="auto")
    ring = Ring(queued(spec=auto, nodes=(node(),)))
    ring.settle()
    ring.ready()
    ring.train(5)
    ring.kill()
    ring.settle()
    assert ring.snapshot.attempt.plan.replicas == 4
    ring.ready()
    ring.kill()
    ring.turn()
    ring.tell(nodes=(node("elm", 2),))
    ring.advance(1)
    ring.settle()
    assert ring.snapshot.attempt.plan.replicas == 2


def test_resume_waits_for_room_and_can_be_paused_meanwhile():
    snapshot = running(
        state="paused",
        desired="paused",
        attempts=(at.attempt(ended_at=NOW),),
        nodes=(node(slots=2),),
        requests=(request("resume"),),
    )
    ring = Ring(snapshot)
    ring.settle()
    assert ring.snapshot.run.state == "queued"
    ring.tell(requests=(*ring.snapshot.requests, request("pause", 2)))
    decision = ring.turn()
    answers = {each.id: each.state for each in decision.requests}
    assert answers == {1: "refused", 2: "applied"}
    assert ring.snapshot.run.state == "paused"
