"""Copies of a layer in different domains, where that is asked for."""

import random
from itertools import accumulate, combinations, pairwise
from typing import Any

import pytest

from control.planner.answer import answer
from tests.fakes.scenarios import small_scenario
from trainmaster.errors import SpecError

LAYER = {"fwd": 2e9, "params": 1e6, "out": 1e5, "act": 1e6}


def equal(domains: str, **more: Any) -> dict[str, Any]:
    """Equal nodes, one in each of these domains."""
    return {
        "nodes": [
            {"name": f"n{at}", "flops": 1e12, "mem": 1e10, "domain": domain}
            for at, domain in enumerate(domains)
        ],
        "link": {"bw": 1e9, "lat": 1e-5},
        "layers": [LAYER] * 8,
        "global_batch": 16,
        "separate_domains": True,
        **more,
    }


def planned(scenario: dict[str, Any]) -> dict[str, Any]:
    return answer(scenario, clock=lambda: 0.0)


def held_by(pipeline: dict[str, Any]) -> dict[int, int]:
    """Layer -> the node that holds it."""
    bounds = pairwise(accumulate(pipeline["layers"], initial=0))
    stages = zip(pipeline["nodes"], bounds, strict=True)
    return {layer: node for node, (first, end) in stages for layer in range(first, end)}


def domains_clash(scenario: dict[str, Any], found: dict[str, Any]) -> bool:
    domains = [node["domain"] for node in scenario["nodes"]]
    return any(
        domains[one[layer]] == domains[other[layer]]
        for one, other in combinations(map(held_by, found["plan"]["pipelines"]), 2)
        for layer in one
    )


def test_no_domain_holds_two_copies_of_a_layer() -> None:
    scenario = equal("aabb")
    found = planned(scenario)
    assert len(found["plan"]["pipelines"]) == 2
    assert not domains_clash(scenario, found)
    alone = planned({**scenario, "separate_domains": False})
    assert len(alone["plan"]["pipelines"]) == 4
    assert alone["step_time_s"] < found["step_time_s"]
    assert not found["exact"]


def test_of_random_clusters_no_plan_clashes_and_one_domain_a_node_forbids_nothing() -> None:
    several = 0
    for seed in range(60):
        draw = random.Random(seed)
        scenario = {**small_scenario(seed), "separate_domains": True}
        for node in scenario["nodes"]:
            node["domain"] = draw.choice("abc")
        try:
            found = planned(scenario)
        except SpecError:
            continue
        several += len(found["plan"]["pipelines"]) > 1
        assert not domains_clash(scenario, found), seed
        for at, node in enumerate(scenario["nodes"]):
            node["domain"] = str(at)
        free = planned({**scenario, "separate_domains": False})
        assert planned(scenario)["step_time_s"] == pytest.approx(free["step_time_s"]), seed
    assert several


def test_with_fewer_domains_than_copies_that_are_asked_for_it_says_so() -> None:
    with pytest.raises(SpecError, match="in 2 domains, one for each copy of a layer"):
        planned(equal("aabb", min_replicas=3))


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"separate_domains": "yes"}, "separate_domains"),
        ({"tensor_choices": [1, 2]}, "separate_domains"),
        ({"nodes": [{"name": "a", "flops": 1e12, "mem": 1e10}]}, "nodes[0].domain"),
    ],
)
def test_what_is_wrong_is_told_with_its_path(changes: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError) as refused:
        planned({**equal("ab"), **changes})
    assert [each.path for each in refused.value.problems] == [path]
