"""Nodes that turn out to be other than planned for, and whether another plan is worth it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from control.incidents import interventions
from control.incidents.record import open_incident
from control.incidents.rung import Evidence
from control.planner.automatic import choose, machines_of
from control.planner.machine import Machine
from control.planner.replan import Replanned, planned_seconds, replanned
from control.recovery import moves
from control.turn import Turn
from tests.fakes import snapshots as at
from tests.fakes.ring import Ring
from tests.fakes.snapshots import NOW
from tests.unit.control.planner.test_automatic import unequal
from tests.unit.control.planner.test_fleet import WORKLOAD, spec
from trainmaster.actions import Rebalance
from trainmaster.layout import roles
from trainmaster.resolution import plan_problems

PROFILES = {
    "oak": {"layer_time_s": 0.01},
    "elm": {"layer_time_s": 0.01},
    "fig": {"layer_time_s": 0.02},
}
ROOMS = [(at.node(name, 1, profile=profile), 1) for name, profile in PROFILES.items()]
MACHINES = machines_of(spec(), ROOMS, WORKLOAD)
PLAN = choose(spec(), WORKLOAD, ROOMS).plan


def measured(**slower: float) -> dict[int, float]:
    """What ranks take where nodes take so many times as long as planned."""
    planned = planned_seconds(MACHINES, spec(), WORKLOAD, PLAN)
    return {role.rank: planned[role.rank] * slower.get(str(role.node), 1.0) for role in roles(PLAN)}


def asked(compute_s: dict[int, float], **more: float):
    return replanned(spec(), WORKLOAD, MACHINES, PLAN, compute_s, **{"steps_left": 1000, **more})


def test_what_was_planned_is_what_ranks_take_in_all():
    planned = planned_seconds(MACHINES, spec(), WORKLOAD, PLAN)
    assert set(planned) == set(range(PLAN.world_size))
    assert max(planned.values()) <= PLAN.predicted.step_time_s * (1 + 1e-9)


def test_a_node_that_became_slow_gets_less_to_do():
    found = asked(measured(oak=3.0))
    assert isinstance(found, Replanned), found
    assert not plan_problems(found.plan, num_layers=8, global_batch=24)
    assert "oak takes 3.00 times as long" in found.because

    def work(plan) -> float:
        return sum(
            layers * each.micro_batches * plan.micro_batch
            for each in plan.pipelines
            for node, layers in zip(each.nodes, each.layers, strict=True)
            if node == "oak"
        )

    assert work(found.plan) < work(PLAN)
    again = replanned(
        spec(), WORKLOAD, MACHINES, found.plan,
        {
            rank: seconds * (3.0 if roles(found.plan)[rank].node == "oak" else 1.0)
            for rank, seconds in planned_seconds(MACHINES, spec(), WORKLOAD, found.plan).items()
        },
        steps_left=1000,
    )  # fmt: skip
    assert isinstance(again, str), "what was planned for once is not planned for again"
    assert "would save" in again


@pytest.mark.parametrize(
    ("slower", "more", "why"),
    [
        ({"oak": 1.14}, {}, "no node is off by more than 15%"),
        ({"oak": 0.9}, {}, "no node is off by more than 15%"),
        ({}, {}, "no node is off"),
        ({"oak": 3.0}, {"steps_left": 3}, "over the 3 steps that are left"),
        ({"oak": 3.0}, {"migration_s": 1e6}, "which going over to it costs"),
    ],
)
def test_a_plan_stays_where_another_is_not_worth_it(slower, more, why):
    found = asked(measured(**slower), **more)
    assert isinstance(found, str)
    assert why in found


def test_ranks_that_tell_nothing_and_plans_without_homes_are_no_evidence():
    assert "no node is off" in asked({})
    pipelines = tuple(each.model_copy(update={"nodes": ()}) for each in PLAN.pipelines)
    bare = PLAN.model_copy(update={"pipelines": pipelines})
    found = replanned(spec(), WORKLOAD, MACHINES, bare, {0: 99.0}, steps_left=1000)
    assert "no node is off" in found
    unknown = replanned(spec(), WORKLOAD, [Machine("ash")], PLAN, {0: 99.0}, steps_left=1000)
    assert isinstance(unknown, str)


def test_a_rule_that_rebalances_a_planned_run_plans_it_anew_once():
    ring = Ring(unequal(train={"steps": 5000, "global_batch": 24}))
    ring.settle()
    ring.ready()
    ring.train(30)
    plan = ring.snapshot.attempt.plan
    workload, spec_ = ring.snapshot.run.workload, ring.snapshot.run.spec
    machines = machines_of(spec_, [(each, 1) for each in ring.snapshot.nodes], workload)
    planned = planned_seconds(machines, spec_, workload, plan)
    slow = roles(plan)[0].node

    def windows(factor: float):
        took = {
            role.rank: planned[role.rank] * (factor if role.node == slow else 1.0)
            for role in roles(plan)
        }
        steps = range(11, 31)
        return {rank: at.samples(dict.fromkeys(steps, each)) for rank, each in took.items()}

    def acted(factor: float):
        snapshot = replace(ring.snapshot, rank_windows={"compute_s": windows(factor)})
        turn = Turn(snapshot, NOW)
        evidence = Evidence("drift", f"node {slow}", "The rule fires", 11, 30)
        action = Rebalance(action="rebalance")
        incident = open_incident(turn, evidence)
        rung = interventions.rebalance(turn, snapshot.attempt, evidence, action, incident)
        return turn, rung

    turn, rung = acted(4.0)
    assert "another plan takes" in rung.because
    [order] = turn.orders
    move = moves.Move.of(order.args["then"])
    assert move.kind == "rebalance"
    assert all(each.nodes for each in move.plan.pipelines)
    turn, rung = acted(1.0)
    assert not turn.orders
    assert "no node is off" in rung.because
