"""`parallel: auto`: equal replicas on equal slots, and a plan where nodes are known to differ."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from control.decide import decide
from control.planner.automatic import can_tell_apart, choose
from control.planner.machine import Machine, ablest, machine_of
from tests.fakes import snapshots as at
from tests.fakes.ring import Ring
from tests.fakes.snapshots import NOW
from tests.unit.control.planner.test_fleet import WORKLOAD, spec
from tests.unit.control.test_scheduler import queued
from trainmaster.errors import SpecError
from trainmaster.resolution import plan_problems
from trainmaster.spec import PlacementSpec

FAST, SLOW = {"layer_time_s": 0.01}, {"layer_time_s": 0.04}


def rooms(**profiles: dict[str, object]):
    return [(at.node(name, 1, profile=profile), 1) for name, profile in profiles.items()]


def test_unequal_nodes_get_unequal_shares_or_layers():
    choice = choose(spec(), WORKLOAD, rooms(oak=FAST, elm=SLOW))
    assert not plan_problems(choice.plan, num_layers=8, global_batch=24)
    work: dict[str, int] = {}
    for pipeline in choice.plan.pipelines:
        for node, layers in zip(pipeline.nodes, pipeline.layers, strict=True):
            work[node] = work.get(node, 0) + layers * pipeline.micro_batches
    assert work["oak"] > 2 * work["elm"]
    assert choice.plan.predicted.step_time_s is not None
    assert "unequal nodes" in choice.because


def test_a_node_that_would_hold_up_the_others_is_left_out_by_name():
    choice = choose(spec(), WORKLOAD, rooms(oak=FAST, elm=FAST, fig={"layer_time_s": 5.0}))
    assert {node for pipe in choice.plan.pipelines for node in pipe.nodes} == {"oak", "elm"}
    assert "fig would make it slower" in choice.because


def test_a_model_that_fits_on_no_single_node_is_cut():
    # 8 million parameters need more than one node claims to have, and less than both.
    layers = [{**each, "parameters": 1_000_000, "output_bytes": 16} for each in WORKLOAD.layers]
    large = WORKLOAD.model_copy(update={"layers": layers, "num_parameters": 8_000_000})
    small = {"layer_time_s": 0.01, "memory_bytes": 90_000_000}
    choice = choose(spec(), large, rooms(oak=small, elm=small))
    assert choice.plan.stages == 2


def test_a_model_that_fits_nowhere_is_refused_with_what_is_lacking():
    tiny = {"layer_time_s": 0.01, "memory_bytes": 1000}
    with pytest.raises(SpecError, match="bytes"):
        choose(spec(), WORKLOAD, rooms(oak=tiny, elm=tiny))


@pytest.mark.parametrize(
    ("machines", "apart"),
    [
        ([Machine("a"), Machine("b")], False),
        ([Machine("a", speed=0.5), Machine("b", speed=0.5)], False),
        ([Machine("a", speed=0.5), Machine("b")], True),
        ([Machine("a", layer_time_s=0.1), Machine("b")], False),
        ([Machine("a", memory_bytes=10)], True),
        ([Machine("a", links={"b": (0.1, None)}), Machine("b")], True),
    ],
)
def test_nodes_are_told_apart_by_figures_that_can_be_compared(machines, apart: bool):
    assert can_tell_apart(machines) is apart


def test_a_profile_says_what_a_node_is():
    profile = {"speed": 0.5, "links": {"elm": {"latency_ms": 20, "mbps": 8}}}
    found = machine_of("oak", 2, profile, 100)
    assert (found.speed, found.memory_bytes) == (0.5, 100)
    assert found.links == {"elm": (0.02, 1e6)}


def test_equal_slots_get_equal_replicas():
    choice = choose(spec(), WORKLOAD, [(at.node("oak", 4), 4)])
    assert (choice.plan.replicas, choice.plan.predicted.step_time_s) == (4, None)


def test_the_optimizer_that_needs_whole_parameters_gets_them():
    whole = spec()
    train = whole.train.model_copy(
        update={"optimizer": whole.train.optimizer.model_copy(update={"name": "adafactor"})}
    )
    choice = choose(whole.model_copy(update={"train": train}), WORKLOAD, rooms(oak=FAST, elm=SLOW))
    assert choice.plan.zero == 0


def test_all_nodes_are_planned_for_unless_the_spec_limits_them():
    """Somebody who writes `parallel: auto` and nothing else has all nodes in mind."""
    nodes = {"ash": SLOW, "elm": FAST, "oak": FAST}
    everywhere = choose(spec(), WORKLOAD, rooms(**nodes))
    assert homes(everywhere.plan) >= {"elm", "oak"}
    limited = spec().model_copy(update={"placement": PlacementSpec(nodes=2)})
    choice = choose(limited, WORKLOAD, rooms(**nodes))
    assert "placement.nodes is 2: ash not taken" in choice.because
    assert choice.plan.replicas == 2
    assert (spec(replicas=2).reach.nodes, spec().reach.nodes) == (1, None)


@pytest.mark.parametrize(
    ("machines", "ablest_two"),
    [
        ([Machine("a", 1), Machine("b", 2), Machine("c", 3)], "bc"),
        ([Machine("a", 2, speed=0.2), Machine("b"), Machine("c")], "bc"),
        ([Machine("a", flops=1e9), Machine("b", flops=1.05e9), Machine("c", flops=1.09e9)], "ab"),
        ([Machine("a", layer_time_s=0.1), Machine("b"), Machine("c", 2)], "ac"),
    ],
    ids=["slots", "speeds", "noise", "figures that cannot be compared"],
)
def test_of_too_many_nodes_those_that_compute_most_are_taken(machines, ablest_two: str):
    assert "".join(machine.name for machine in ablest(machines, 2)) == ablest_two
    assert ablest(machines, 2, first={"c"})[-1].name == "c"
    assert ablest(machines, None) == machines


def unequal(**changes):
    nodes = (
        at.node("oak", 1, profile=FAST),
        at.node("elm", 1, profile=FAST),
        at.node("fig", 1, profile={"layer_time_s": 0.015}),
    )
    run = queued(spec=at.spec(parallel="auto", **changes), nodes=nodes)
    workload = WORKLOAD.model_copy(update={"num_samples": 10_000})
    return replace(run, run=replace(run.run, workload=workload))


def homes(plan) -> set[str]:
    return {node for pipeline in plan.pipelines for node in pipeline.nodes}


def test_a_planned_run_keeps_its_nodes_when_it_restarts_and_is_planned_anew_without_one():
    ring = Ring(unequal())
    ring.settle()
    first = ring.snapshot.attempt.plan
    assert homes(first) >= {"oak", "elm"}
    ring.ready()
    ring.train(5)
    ring.kill(0)
    ring.settle()
    assert ring.snapshot.attempt.plan == first
    ring.ready()
    ring.kill(0)
    ring.turn()
    left = tuple(each for each in ring.snapshot.nodes if each.id != "elm")
    ring.tell(nodes=left)
    ring.advance(60)
    ring.settle()
    again = ring.snapshot.attempt.plan
    assert "oak" in homes(again)
    assert "elm" not in homes(again)
    assert again.predicted.step_time_s > first.predicted.step_time_s


def test_a_run_waits_where_not_even_one_slot_is_free():
    taken = tuple(replace(each, taken=frozenset({0})) for each in unequal().nodes)
    decision = decide(replace(unequal(), nodes=taken), now=NOW)
    assert "free slot" in decision.because


def silent(snapshot, seconds: float, *, but: str):
    """Return the snapshot with nodes, all but one, that were heard so long ago."""
    heard_at = NOW - timedelta(seconds=seconds)
    nodes = [
        each if each.id == but else replace(each, last_seen_at=heard_at) for each in snapshot.nodes
    ]
    return replace(snapshot, nodes=tuple(nodes))


def submitted(snapshot, seconds: float):
    """Return the snapshot with a run that was submitted so long ago."""
    return replace(snapshot, run=replace(snapshot.run, created_at=NOW - timedelta(seconds=seconds)))


def test_a_new_run_is_not_planned_without_nodes_that_are_silent_for_a_moment():
    late = silent(submitted(unequal(), 1), 4, but="oak")
    decision = decide(late, now=NOW)
    assert decision.new_attempt is None
    assert "a word from elm, fig" in decision.because
    lost = decide(silent(submitted(unequal(), 1), 30, but="oak"), now=NOW)
    assert homes(lost.new_attempt.plan) == {"oak"}
    waited = decide(silent(submitted(unequal(), 11), 4, but="oak"), now=NOW)
    assert homes(waited.new_attempt.plan) == {"oak"}


def test_after_the_control_plane_was_away_the_first_node_heard_is_not_all_there_is():
    early = silent(submitted(unequal(), 600), 60, but="oak")
    up_since = NOW - timedelta(seconds=2)
    decision = decide(replace(early, control_up_since=up_since), now=NOW)
    assert "a word from elm, fig" in decision.because


def test_the_same_nodes_give_the_same_plan():
    many = [
        (at.node(f"n{index:02}", 1, profile={"layer_time_s": 0.01 * (1 + index % 7)}), 1)
        for index in range(24)
    ]
    assert choose(spec(), WORKLOAD, many) == choose(spec(), WORKLOAD, many)
