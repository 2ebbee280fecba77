"""Nodes that join beside a run whose plan was left open."""

from __future__ import annotations

from dataclasses import replace

import pytest

from control.planner.automatic import choose_for
from control.planner.joining import joined
from control.planner.machine import Machine
from control.planner.replan import Replanned
from control.recovery.moves import Move
from tests.fakes import snapshots as at
from tests.fakes.ring import Ring
from tests.unit.control.planner.test_fleet import WORKLOAD, spec
from tests.unit.control.test_moves import obey
from tests.unit.control.test_scheduler import queued

FAST = {"layer_time_s": 0.01}
TWO = [Machine("oak", layer_time_s=0.01), Machine("elm", layer_time_s=0.02)]
PLAN = choose_for(spec(), WORKLOAD, TWO).plan


def test_a_node_that_joins_is_worth_a_move_while_many_steps_are_left():
    three = [*TWO, Machine("fig", layer_time_s=0.01)]
    found = joined(spec(), WORKLOAD, three, PLAN, steps_left=1000, restart_s=5.0)
    assert isinstance(found, Replanned)
    assert "fig" in {node for pipe in found.plan.pipelines for node in pipe.nodes}
    assert "which saves" in found.because
    few = joined(spec(), WORKLOAD, three, PLAN, steps_left=3, restart_s=5.0)
    assert isinstance(few, str)
    assert "over the 3 steps that are left; going over costs 40 s" in few
    unmeasured = joined(spec(), WORKLOAD, three, PLAN, steps_left=3)
    assert "going over costs 60 s" in str(unmeasured)


@pytest.mark.parametrize(
    ("machines", "why"),
    [
        (TWO, "no node stands idle"),
        ([*TWO, Machine("fig", slots=100, layer_time_s=0.01)], "more than 64 slots"),
        ([TWO[0], Machine("fig", layer_time_s=0.01)], "needs a free slot on elm"),
        ([*TWO, Machine("fig", layer_time_s=5.0)], "which saves 0 s"),
    ],
)
def test_a_plan_stays_where_there_is_no_better_one(machines, why):
    found = joined(spec(), WORKLOAD, machines, PLAN, steps_left=1000)
    assert isinstance(found, str)
    assert why in found


def test_what_a_node_must_fetch_over_a_slow_link_is_counted():
    heavy = [{**each, "parameters": 1_000_000} for each in WORKLOAD.layers]
    workload = WORKLOAD.model_copy(update={"layers": heavy})
    slow = dict.fromkeys(("oak", "elm"), (0.001, 100000.0))
    three = [*TWO, Machine("fig", layer_time_s=0.001, links=slow)]
    asked = {"steps_left": 10, "restart_s": 1.0}
    found = joined(spec(), workload, three, PLAN, **asked)
    assert isinstance(found, str), "twelve bytes of each parameter over 100 kB/s"


def two_of_three(**changes: object) -> Ring:
    """A run that began on two nodes of the three that it may have."""
    nodes = tuple(at.node(name, 1, profile=FAST) for name in ("oak", "elm"))
    asking = at.spec(
        parallel="auto",
        placement={"nodes": 3, "min_nodes": 1},
        train={"steps": 5000, "global_batch": 24},
        **changes,
    )
    run = queued(spec=asking, nodes=nodes)
    workload = WORKLOAD.model_copy(update={"num_samples": 10_000})
    ring = Ring(replace(run, run=replace(run.run, workload=workload)))
    ring.settle()
    ring.ready()
    ring.train(20)
    return ring


def join(ring: Ring) -> None:
    ring.tell(nodes=(*ring.snapshot.nodes, at.node("fig", 1, profile=FAST)))


def stops(ring: Ring) -> list[Move]:
    return [Move.of(each.args["then"]) for each in ring.snapshot.orders if "then" in each.args]


def test_a_run_takes_in_a_node_and_loses_no_step():
    ring = two_of_three()
    join(ring)
    ring.turn()
    assert not stops(ring), "it has not trained for long enough"
    ring.advance(601)
    join_seen_at = ring.now
    ring.tell(nodes=tuple(replace(each, last_seen_at=join_seen_at) for each in ring.snapshot.nodes))
    ring.turn()
    [move] = stops(ring)
    assert move.kind == "join"
    ring.turn()
    assert len(stops(ring)) == 1, "it is under way"
    obey(ring, 22)
    ring.settle()
    attempt = ring.snapshot.attempt
    assert attempt is not None
    assert (attempt.cause_kind, attempt.resumed_from_step) == ("join", 22)
    homes = {node for pipe in attempt.plan.pipelines for node in pipe.nodes}
    assert homes == {"oak", "elm", "fig"}


def test_null_never_moves():
    ring = two_of_three(recovery={"replan_after_s": None})
    join(ring)
    ring.advance(100_000)
    ring.tell(nodes=tuple(replace(each, last_seen_at=ring.now) for each in ring.snapshot.nodes))
    ring.turn()
    assert not stops(ring)
