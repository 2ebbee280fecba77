"""The search: equal to trying everything on small clusters, and what must hold of any optimum."""

from __future__ import annotations

import copy
import math
import random

import numpy as np
import pytest

from control.planner.answer import answer, plan_json
from control.planner.best import Best
from control.planner.cost import Model
from control.planner.cuts import cut_costs, stage_end_bounds
from control.planner.placing import place
from control.planner.reading import read_scenario
from control.planner.refine import refine
from control.planner.ring import rings
from control.planner.search import mixes_of, search
from control.planner.seeds import judge
from control.planner.setting import Pipe, Setting
from tests.fakes.rcm_oracle import Oracle
from tests.fakes.scenarios import small_scenario
from trainmaster.errors import SpecError

UNIFORM = {"fwd": 2e9, "params": 1e6, "out": 1e5, "act": 1e6}


def best(scenario) -> float:
    try:
        return search(read_scenario(scenario)).verdict.step_s
    except SpecError:
        return math.inf


@pytest.mark.parametrize("seed", range(24))
def test_the_search_finds_what_trying_everything_finds(seed):
    scenario = small_scenario(seed, nodes=3, layers=5)
    oracle = Oracle(scenario)
    optimum, _ = oracle.optimum()
    try:
        found = search(read_scenario(scenario))
    except SpecError:
        assert optimum == math.inf
        return
    plan = plan_json(found.draft, place(found.draft, found.scenario))
    assert oracle.fits(plan)
    assert found.verdict.step_s == pytest.approx(optimum, rel=1e-9)
    assert oracle.step_time(plan) == pytest.approx(optimum, rel=1e-9)


def test_nodes_of_one_kind_are_interchangeable():
    scenario = small_cluster([4e12, 4e12, 1e12], far=9)
    assert read_scenario(scenario).counts == (2, 1)
    optimum, _ = Oracle(scenario).optimum()
    assert best(scenario) == pytest.approx(optimum, rel=1e-9)


@pytest.mark.parametrize("seed", range(100, 108))
def test_more_of_anything_never_makes_the_optimum_worse(seed):
    scenario = small_scenario(seed, nodes=3, layers=5)
    before = best(scenario)
    changes = {
        "memory": lambda s: [node.update(mem=node["mem"] * 2) for node in s["nodes"]],
        "speed": lambda s: s["nodes"][0].update(flops=s["nodes"][0]["flops"] * 1.5),
        "bandwidth": lambda s: s.update(bw=[[each * 2 for each in row] for row in s["bw"]]),
        "latency": lambda s: s.update(lat=[[each / 2 for each in row] for row in s["lat"]]),
    }
    for name, change in changes.items():
        changed = copy.deepcopy(scenario)
        change(changed)
        assert best(changed) <= before * (1 + 1e-9), name
    larger = copy.deepcopy(scenario)
    larger["nodes"].append({"name": "new", "flops": 2e12, "mem": 1e9})
    for row in larger["bw"]:
        row.append(1e9)
    for row in larger["lat"]:
        row.append(1e-5)
    size = len(larger["nodes"])
    larger["bw"].append([1e9] * (size - 1) + [0.0])
    larger["lat"].append([1e-5] * (size - 1) + [0.0])
    assert best(larger) <= before * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(200, 206))
def test_names_and_order_of_nodes_do_not_matter(seed):
    scenario = small_scenario(seed, nodes=4, layers=5)
    order = list(range(len(scenario["nodes"])))
    random.Random(seed).shuffle(order)
    renamed = {
        **scenario,
        "nodes": [{**scenario["nodes"][at], "name": f"x{at}"} for at in order],
        "bw": [[scenario["bw"][i][j] for j in order] for i in order],
        "lat": [[scenario["lat"][i][j] for j in order] for i in order],
    }
    before, after = best(scenario), best(renamed)
    assert before == after == math.inf or after == pytest.approx(before, rel=1e-9)


@pytest.mark.parametrize("seed", range(300, 304))
def test_twice_as_fast_in_everything_takes_half_as_long(seed):
    scenario = small_scenario(seed, nodes=3, layers=4)
    faster = copy.deepcopy(scenario)
    for node in faster["nodes"]:
        node["flops"] *= 2
        node["t0"] /= 2
    faster["bw"] = [[each * 2 for each in row] for row in faster["bw"]]
    faster["lat"] = [[each / 2 for each in row] for row in faster["lat"]]
    before, after = best(scenario), best(faster)
    assert before == after == math.inf or after == pytest.approx(before / 2, rel=1e-9)


def test_the_same_scenario_gives_the_same_plan():
    scenario = cluster({"A": 12, "B": 9}, layers=24)
    one, other = (search(read_scenario(scenario)) for _ in range(2))
    assert one.draft == other.draft
    assert one.verdict == other.verdict


def test_a_search_that_is_stopped_gives_the_best_plan_so_far():
    scenario = read_scenario(cluster({"A": 12, "B": 9}, layers=24))
    stopped = search(scenario, stop=lambda: True)
    assert stopped.stopped
    assert stopped.model.fits(stopped.draft)
    assert search(scenario).verdict.step_s <= stopped.verdict.step_s


def test_a_scenarios_time_limit_is_kept():
    seconds = iter(range(10**9))
    told = answer(
        {**cluster({"A": 12, "B": 9}, layers=24), "time_limit_s": 5.0},
        clock=lambda: float(next(seconds)),
    )
    assert any("cut short" in each for each in told["warnings"])
    assert told["step_time_s"] > told["lower_bound_s"]


def test_a_slow_far_node_is_left_out():
    scenario = small_cluster([4e12, 4e12, 1e11], far=2)
    found = search(read_scenario(scenario))
    used = {kind for pipe in found.draft.pipes for kind in pipe.kinds}
    assert len(used) == 1
    assert found.draft.nodes == 2


def test_many_nodes_that_all_differ_are_planned_for():
    draw = random.Random(3)
    nodes = [{"name": f"n{at}", "flops": draw.uniform(1e12, 4e12), "mem": 1e11} for at in range(24)]
    scenario = {
        "nodes": nodes,
        "layers": [UNIFORM] * 24,
        "link": {"bw": 1e9, "lat": 1e-5},
        "global_batch": 384,
        "micro_batch_choices": [1, 2],
    }
    found = search(read_scenario(scenario))
    assert found.gap < 0.2


@pytest.mark.parametrize("seed", range(40))
def test_bounds_are_never_above_what_the_simulation_gives(seed):
    draw = random.Random(seed)
    scenario = read_scenario(small_scenario(seed + 500, nodes=5, layers=9))
    stages = min(scenario.num_nodes, scenario.layers.count)
    for _ in range(5):
        cuts = sorted(draw.sample(range(1, scenario.layers.count), stages - 1))
        layers = np.diff([0, *cuts, scenario.layers.count])
        kinds = tuple(scenario.kind_of[:stages])
        n = draw.choice([1, 2, 3, 5, 9, 40])
        setting = Setting(1, draw.choice(["1f1b", "gpipe"]))
        costs = cut_costs(scenario, kinds, layers[None], setting)
        bounds = stage_end_bounds(costs, n, setting.schedule)[0]
        times = Model(scenario).times(Pipe(kinds, tuple(layers.tolist()), n), setting)
        for bound, end in zip(bounds, times.stage_ends, strict=True):
            assert bound <= end * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_local_search_alone_comes_near_the_optimum(seed):
    draw = random.Random(seed)
    scenario = read_scenario(
        {
            "nodes": [
                {"name": f"n{at}", "flops": draw.choice([1e12, 2e12, 5e12]), "mem": 1e11}
                for at in range(5)
            ],
            "layers": [UNIFORM] * 10,
            "link": {"bw": 1e9, "lat": 1e-5},
            "global_batch": 24,
            "micro_batch_choices": [1, 2],
        }
    )
    optimum = search(scenario)
    assert optimum.exact
    model, near = Model(scenario), Best()
    for mix in mixes_of(model)[:3]:
        judge(model, mix.setting, mix.shapes, near)
    refine(model, near, tries=600, stop=lambda: False)
    assert optimum.verdict.step_s <= near.step_s * (1 + 1e-9) <= optimum.verdict.step_s * 1.1


def test_the_best_ring_goes_around_a_slow_link():
    bw = np.full((4, 4), 1e9)
    bw[0, 1] = bw[2, 3] = 1e6
    lat = np.full((4, 4), 1e-5)
    ring = rings(bw, lat, [(0, 1), (1, 1), (2, 1), (3, 1)])
    assert [each.bw for each in ring] == [1e9]
    hops = zip(ring[0].kinds, (*ring[0].kinds[1:], ring[0].kinds[0]), strict=True)
    assert not {(0, 1), (2, 3)} & set(hops)


def test_a_ring_weighs_latency_against_bandwidth():
    bw = np.array([[0, 1e9, 1e6], [1e6, 0, 1e9], [1e9, 1e6, 0]])
    lat = np.array([[0, 1e-2, 1e-5], [1e-5, 0, 1e-2], [1e-2, 1e-5, 0]])
    told = {(each.lat, each.bw) for each in rings(bw, lat, [(0, 1), (1, 1), (2, 1)])}
    assert told == {(1e-5, 1e6), (1e-2, 1e9)}


def test_no_ring_without_a_way_back():
    bw = np.array([[0.0, 1e9], [0.0, 0.0]])
    assert rings(bw, np.zeros((2, 2)), [(0, 1), (1, 1)]) == ()


def cluster(counts, *, layers):
    return {
        "node_counts": counts,
        "node_types": {
            name: {"flops": 1e12 * (at + 1), "mem": 2e9} for at, name in enumerate(counts)
        },
        "link": {"bw": 1e9, "lat": 1e-5},
        "layers": [UNIFORM] * layers,
        "global_batch": 128,
        "micro_batch_choices": [1, 2, 4],
        "bucket_bytes": 4e6,
    }


def small_cluster(flops, *, far):
    size = len(flops)
    bw = [[1e9 if far not in (i, j) else 1e6 for j in range(size)] for i in range(size)]
    lat = [[1e-5 if far not in (i, j) else 1e-1 for j in range(size)] for i in range(size)]
    return {
        "nodes": [{"name": f"n{at}", "flops": each, "mem": 1e12} for at, each in enumerate(flops)],
        "layers": [UNIFORM] * 4,
        "bw": bw,
        "lat": lat,
        "global_batch": 8,
        "micro_batch_choices": [1],
    }
