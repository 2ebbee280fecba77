"""Slots of one machine share its links to others."""

from __future__ import annotations

from typing import Any

import pytest

from control.planner.answer import answer, asked_for, told
from control.planner.cost import Model
from control.planner.fleet import asked, fleet_scenario
from control.planner.machine import Machine
from control.planner.reading import read_scenario
from control.planner.scenario import Scenario
from control.planner.search import search
from control.planner.setting import Draft, Pipe, Setting
from tests.unit.control.planner.test_fleet import WORKLOAD, spec

FAST, SLOW = 1e12, 1e6
LAYER = {"fwd": 1e9, "params": 1.0, "out": 1e4, "act": 1e3}


def pair(slots: int, *, shared: bool, bw: float = SLOW, **more: Any) -> dict[str, Any]:
    """Two machines of so many slots; the link from a to b is as slow as the one back."""
    hosts = [host for host in "ab" for _ in range(slots)]
    nodes = [
        # Figures that differ a little by machine: kinds of their own.
        {"name": f"{host}{at}", "flops": 1e12, "mem": 1e10 if host == "a" else 1.1e10}
        | ({"host": host} if shared else {})
        for at, host in enumerate(hosts)
    ]
    between = [[0.0 if i == j else bw for j in range(2 * slots)] for i in range(2 * slots)]
    return {
        "nodes": nodes,
        "bw": between,
        "lat": [[0.0] * (2 * slots)] * (2 * slots),
        "layers": [LAYER] * 4,
        "global_batch": 8 * slots,
        "micro_batch_choices": [1],
        "grad_bytes": 1e-20,
        **more,
    }


def across(slots: int, schedule: str = "1f1b", n: int = 8) -> Draft:
    return Draft(Setting(1, schedule), (Pipe((0, 1), (2, 2), n, copies=slots),))


def pipe_s(scenario: Scenario, draft: Draft) -> float:
    return Model(scenario).verdict(draft).pipe_s[0]


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_a_link_that_binds_takes_as_many_times_as_long_as_pipelines_share_it(slots):
    scenario = read_scenario(pair(slots, shared=True))
    f, b, c = 2e-3, 4e-3, 1e4 / SLOW
    # All activations one after the other, then all gradients; the first and the last pass alone.
    found = pipe_s(scenario, across(slots, "gpipe"))
    assert found == pytest.approx(2 * f + 2 * b + 2 * 8 * slots * c)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("slots", [2, 3])
def test_equal_pipelines_are_as_on_links_of_a_part_of_the_width(schedule, slots):
    sharing = read_scenario(pair(slots, shared=True))
    narrow = read_scenario(pair(slots, shared=False, bw=SLOW / slots))
    draft = across(slots, schedule)
    assert pipe_s(sharing, draft) == pytest.approx(pipe_s(narrow, draft), rel=1e-12)
    alone = read_scenario(pair(slots, shared=False))
    assert pipe_s(alone, draft) < pipe_s(sharing, draft)


def test_pipelines_within_a_machine_and_on_other_links_share_nothing():
    apart = Draft(Setting(1), (Pipe((0, 0), (2, 2), 8), Pipe((1, 1), (2, 2), 8)))
    sharing, own = (read_scenario(pair(2, shared=each)) for each in (True, False))
    assert Model(sharing).verdict(apart) == Model(own).verdict(apart)


def test_two_that_go_opposite_ways_meet_on_each_way():
    # Activations of one and gradients of the other go from a to b, and the same back.
    crossed = Draft(Setting(1), (Pipe((0, 1), (2, 2), 8), Pipe((1, 0), (2, 2), 8)))
    sharing = read_scenario(pair(2, shared=True))
    halved = read_scenario(pair(2, shared=False, bw=SLOW / 2))
    assert Model(sharing).verdict(crossed).pipe_s == Model(halved).verdict(crossed).pipe_s


def test_the_explanation_names_the_link_and_the_part():
    only = {"max_replicas": 2, "min_replicas": 2, "max_stages": 2}
    nodes = [{**each, "mem": 1e9} for each in pair(2, shared=True)["nodes"]]
    heavy = [{**LAYER, "params": 2e7}] * 4  # of which a node holds three
    scenario = pair(2, shared=True, nodes=nodes, layers=heavy, **only)
    for row, column in ((0, 1), (1, 0), (2, 3), (3, 2)):
        scenario["bw"][row][column] = 0.0  # so that pipelines must cross
    answered = answer(scenario, clock=iter(range(10**9)).__next__)
    why = " ".join(answered["why"])
    assert "2 flows of messages between stages share the link from a to b" in why
    assert not answered["exact"]
    link = next(each for each in answered["loads"] if each["part"].startswith("link a"))
    assert link["busy_s"] == pytest.approx(8 * 2 * 1e4 / SLOW)


def test_the_search_keeps_pipelines_off_a_link_that_they_would_share():
    scenario = pair(2, shared=True, min_replicas=2, max_stages=2)
    for row, column in ((0, 1), (1, 0), (2, 3), (3, 2)):
        scenario["bw"][row][column] = SLOW * 1.5  # a little better than the link across
    scenario["layers"] = [{**LAYER, "params": 2e8, "out": 1e2}] * 4
    found = search(read_scenario(scenario))
    assert not any(len(set(pipe.kinds)) > 1 for pipe in found.draft.pipes)


def test_without_machines_each_pair_of_nodes_has_a_link_of_its_own():
    assert not read_scenario(pair(4, shared=False)).has_shared_links


def test_a_plan_that_is_asked_for_shares_the_links_of_its_own_nodes():
    machines = [Machine(name, slots=2, layer_time_s=1e-3) for name in ("oak", "elm")]
    heavy = [{**each, "output_bytes": 10**9} for each in WORKLOAD.layers]
    workload = WORKLOAD.model_copy(update={"layers": heavy})
    asking = spec(replicas=2, stages=2, micro_batch=1)
    plan = asked(asking, workload)
    assert plan is not None
    scenario = fleet_scenario(machines, asking, workload)

    def step_s(*rows: tuple[str, str]) -> float:
        pipelines = tuple(
            pipeline.model_copy(update={"nodes": row})
            for pipeline, row in zip(plan.pipelines, rows, strict=True)
        )
        found = asked_for(scenario, plan.model_copy(update={"pipelines": pipelines}))
        crossing = any(len(set(row)) > 1 for row in rows)
        assert any("share the link" in each for each in told(found, 0.0)["why"]) is crossing
        return found.verdict.step_s

    within = step_s(("oak", "oak"), ("elm", "elm"))
    assert step_s(("oak", "elm"), ("oak", "elm")) > 1.5 * within
