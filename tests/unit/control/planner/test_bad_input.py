"""What no plan can be made for is refused by name, and what is odd gets the best plan there is."""

from __future__ import annotations

import copy
import math

import pytest

from control.planner.answer import answer
from control.planner.reading import read_scenario
from control.planner.search import search
from trainmaster.errors import SpecError

GOOD = {
    "nodes": [
        {"name": "a", "type": "A", "flops": 4e12, "mem": 1e10, "t0": 0.0},
        {"name": "b", "type": "B", "flops": 1e12, "mem": 1e10, "t0": 0.0},
    ],
    "layers": [{"fwd": 2e9, "params": 1e6, "out": 1e5, "act": 1e6}] * 4,
    "bw": [[0.0, 1e9], [1e9, 0.0]],
    "lat": [[0.0, 1e-5], [1e-5, 0.0]],
    "global_batch": 8,
    "micro_batch_choices": [1, 2],
}


def changed(*path, to):
    scenario = copy.deepcopy(GOOD)
    here = scenario
    for part in path[:-1]:
        here = here[part]
    if to is None:
        del here[path[-1]]
    else:
        here[path[-1]] = to
    return scenario


@pytest.mark.parametrize(
    ("scenario", "where", "what"),
    [
        (changed("nodes", 1, "flops", to=0), "nodes[1].flops", "above 0"),
        (changed("nodes", 1, "flops", to=-1e12), "nodes[1].flops", "above 0, not -1e+12"),
        (changed("nodes", 1, "flops", to=math.nan), "nodes[1].flops", "finite number, not nan"),
        (changed("nodes", 0, "mem", to=math.inf), "nodes[0].mem", "finite number, not inf"),
        (changed("nodes", 0, "mem", to=None), "nodes[0].mem", "is needed"),
        (changed("nodes", 0, "mem", to="80 GB"), "nodes[0].mem", "a number, not '80 GB'"),
        (changed("nodes", 0, "t0", to=-1), "nodes[0].t0", "at least 0"),
        (changed("nodes", 1, "name", to="a"), "nodes[1].name", "'a' is the name of nodes[0]"),
        (changed("nodes", to=[]), "nodes", "at least one node"),
        (changed("nodes", 0, to=7), "nodes[0]", "must be a mapping"),
        (changed("layers", to=[]), "layers", "at least one layer"),
        (changed("layers", to="96 of them"), "layers", "96 x"),
        (changed("layers", 2, to={"fwd": 0, "params": 1, "out": 1, "act": 1}), "layers[2].fwd", ""),
        (changed("bw", 0, 1, to=-1.0), "bw[0][1]", "(a to b) must be at least 0"),
        (changed("bw", 0, 1, to=math.nan), "bw[0][1]", "finite"),
        (changed("bw", 0, to=[0.0]), "bw[0]", "each of the 2 nodes"),
        (changed("lat", to=None), "lat", "is needed"),
        (changed("global_batch", to=None), "global_batch", "is needed"),
        (changed("global_batch", to=2.5), "global_batch", "whole number"),
        (changed("global_batch", to=0), "global_batch", "above 0"),
        (changed("global_batch", to=10**12), "global_batch", "more than 1000000 micro-batches"),
        (changed("micro_batch_choices", to=[3, 5]), "global_batch", "not divisible by any of"),
        (changed("micro_batch_choices", to=[]), "micro_batch_choices", "at least one choice"),
        (changed("micro_batch_choices", to=[0]), "micro_batch_choices", "whole number"),
        (changed("zero_choices", to=[4]), "zero_choices", "0 or 1"),
        (changed("schedules", to=["zigzag"]), "schedules", "1f1b or gpipe"),
        (changed("bucket_bytes", to=-5.0), "bucket_bytes", "above 0"),
        (changed("max_stages", to=0), "max_stages", ""),
        ({**GOOD, "min_replicas": 3, "max_replicas": 2}, "min_replicas", "above max_replicas"),
        ({**GOOD, "overlap": "yes"}, "overlap", "true or false"),
        ({**GOOD, "node_counts": {"A": 2}}, "node_types", "must map each type"),
        ("nonsense", "", "must be a mapping"),
        ({}, "nodes", "at least one node"),
    ],
)
def test_a_bad_scenario_is_refused_with_the_place_and_the_mend(scenario, where, what):
    with pytest.raises(SpecError) as caught:
        read_scenario(scenario)
    assert any(
        problem.path == where and what in problem.message for problem in caught.value.problems
    ), [str(problem) for problem in caught.value.problems]


def test_all_problems_are_told_at_once():
    scenario = changed("nodes", 0, "flops", to=0)
    scenario["global_batch"] = -1
    with pytest.raises(SpecError) as caught:
        read_scenario(scenario)
    assert {problem.path for problem in caught.value.problems} == {
        "nodes[0].flops",
        "global_batch",
    }


@pytest.mark.parametrize(
    "scenario",
    [
        changed("layers", to=[{"fwd": 2e9, "params": 1e10, "out": 1e5, "act": 1e6}] * 4),
        {**GOOD, "max_stages": 1, "nodes": [{**each, "mem": 5e7} for each in GOOD["nodes"]]},
        {**GOOD, "min_replicas": 3},
        {**GOOD, "min_replicas": 9, "micro_batch_choices": [8]},
    ],
)
def test_a_model_that_fits_nowhere_is_refused_with_the_numbers(scenario):
    with pytest.raises(SpecError, match=r"fits in no way.*bytes"):
        search(read_scenario(scenario))


def test_nodes_without_a_link_are_not_joined():
    scenario = changed("bw", to=[[0.0, 0.0], [0.0, 0.0]])
    found = search(read_scenario(scenario))
    assert found.draft.nodes == 1
    one_way = changed("bw", to=[[0.0, 1e9], [0.0, 0.0]])
    assert search(read_scenario(one_way)).draft.nodes == 1


def test_links_may_differ_by_direction():
    good = {**GOOD, "global_batch": 64}
    scenario = {**good, "bw": [[0.0, 1e9], [1e5, 0.0]]}
    there = search(read_scenario(scenario))
    assert there.verdict.step_s > search(read_scenario(good)).verdict.step_s


def test_one_node_needs_no_links():
    scenario = {key: GOOD[key] for key in ("layers", "global_batch", "micro_batch_choices")}
    found = search(read_scenario({**scenario, "nodes": GOOD["nodes"][:1]}))
    assert found.verdict.step_s == pytest.approx(8 * 4 * 3 * 2e9 / 4e12)


def test_a_million_micro_batches_are_no_more_work_than_a_hundred():
    found = search(read_scenario({**GOOD, "global_batch": 1_000_000}))
    assert found.verdict.step_s == pytest.approx(1_000_000 * 4 * 3 * 2e9 / 5e12, rel=0.05)


@pytest.mark.slow
def test_ten_thousand_nodes_are_planned_for():
    told = answer(
        {
            "node_counts": {"A": 6000, "B": 4000},
            "node_types": {"A": {"flops": 2e12, "mem": 1e10}, "B": {"flops": 1e12, "mem": 1e10}},
            "link": {"bw": 1e10, "lat": 1e-6},
            "layers": [{"fwd": 2e9, "params": 1e6, "out": 1e5, "act": 1e6}] * 8,
            "global_batch": 100_000,
            "micro_batch_choices": [1, 10],
            "bucket_bytes": 2.5e7,
        },
        clock=iter(range(10**9)).__next__,
    )
    nodes = [node for each in told["plan"]["pipelines"] for node in each["nodes"]]
    assert len(set(nodes)) == len(nodes) > 1000
    shares = [each["micro_batches"] for each in told["plan"]["pipelines"]]
    assert sum(shares) * told["plan"]["micro_batch"] == 100_000


def test_more_nodes_than_can_be_meant_are_refused():
    with pytest.raises(SpecError, match="more than 20000 nodes"):
        read_scenario({**GOOD, "node_counts": {"A": 10**9}, "node_types": {"A": {}}})


def test_a_key_that_is_not_known_is_told_and_not_used():
    told = answer({**GOOD, "wind": 3, "id": "S99"}, clock=iter(range(10**9)).__next__)
    assert [each for each in told["warnings"] if "wind" in each]
    assert not [each for each in told["warnings"] if "S99" in each]
