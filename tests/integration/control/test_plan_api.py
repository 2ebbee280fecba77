"""POST /v1/plan: a scenario, or a spec on nodes at hand; nothing is stored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from control.clock import SystemClock
from control.db.sql.engine import Database
from tests.fakes.bad_scenarios import BAD, GOOD, changed
from tests.integration.control.api import INFO, SPEC, FakeNode, Plane, plane
from trainmaster.home import Home
from trainmaster.plan import Plan
from trainmaster.resolution import plan_problems

SCENARIO: dict[str, Any] = {
    "nodes": [
        {"name": "a", "flops": 4e12, "mem": 1e10},
        {"name": "b", "flops": 1e12, "mem": 1e10},
    ],
    "layers": [{"fwd": 2e9, "params": 1e6, "out": 1e5, "act": 1e6}] * 4,
    "link": {"bw": 1e9, "lat": 1e-5},
    "global_batch": 64,
    "micro_batch_choices": [1, 2],
}
LAYER = {"forward_flops": 1e9, "parameters": 10_000, "output_bytes": 4096}
DESCRIBED = {
    "ok": True,
    "result": {**INFO, "layers": [{"index": at, **LAYER} for at in range(4)]},
    "problems": [],
}
CLUSTER = {
    "nodes": [
        {"name": "fast", "emulate": {"layer_time_s": 0.01}},
        {"name": "slow", "emulate": {"layer_time_s": 0.03}},
    ],
    "links": [{"from": "fast", "to": "slow", "latency_ms": 1.0}],
}


@pytest.fixture
def here(db: Database, tmp_path: Path) -> Iterator[Plane]:
    with plane(db, Home(tmp_path / "home"), SystemClock()) as made:
        yield made


def test_a_viewer_may_ask_and_nothing_is_stored(here: Plane) -> None:
    found = here.people["viewer"].post("/v1/plan", {"scenario": SCENARIO}, expect=200)
    assert found["exact"]
    assert found["why"]
    assert here.admin.get("/v1/runs") == []


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, ""),
        ({"scenario": SCENARIO, "spec": SPEC}, ""),
        ({"scenario": SCENARIO, "cluster": CLUSTER}, ""),
        ({"scenario": {**SCENARIO, "global_batch": -1}}, "global_batch"),
        ({"spec": {**SPEC, "colour": "red"}}, "colour"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(here: Plane, body: Any, path: str) -> None:
    answer = here.people["viewer"].post("/v1/plan", body, expect=422)
    assert path in {each["path"] for each in answer["problems"]}


def test_a_spec_needs_a_node_that_describes_its_workload(here: Plane) -> None:
    answer = here.people["viewer"].post("/v1/plan", {"spec": SPEC}, expect=503)
    assert answer["code"] == "no_node"


def test_a_spec_is_planned_for_a_cluster_and_for_the_nodes_that_are_there(here: Plane) -> None:
    node = FakeNode(here.as_node("n1"), describes=DESCRIBED)
    node.sync()
    auto = {**deepcopy(SPEC), "parallel": "auto"}
    viewer = here.people["viewer"]
    with node.in_background():
        there = viewer.post("/v1/plan", {"spec": auto, "cluster": CLUSTER}, expect=200)
        connected = viewer.post("/v1/plan", {"spec": auto}, expect=200)
        as_asked = viewer.post("/v1/plan", {"spec": SPEC, "cluster": CLUSTER}, expect=200)
    with node.in_background():
        odd = {"nodes": [{"name": "a", "slots": 0}]}
        told = viewer.post("/v1/plan", {"spec": auto, "cluster": odd}, expect=422)
    assert "nodes[0].slots" in {each["path"] for each in told["problems"]}
    for found in (there, connected, as_asked):
        plan = Plan.model_validate(found["plan"])
        assert not plan_problems(plan, num_layers=4, global_batch=8)
        assert found["step_time_s"] > 0
    used = {name for each in there["plan"]["pipelines"] for name in each["nodes"]}
    assert used <= {"fast", "slow"}
    assert not any("equal replicas" in each for each in there["warnings"])
    assert any("equal replicas" in each for each in connected["warnings"])
    assert there["step_time_s"] <= as_asked["step_time_s"]
    assert {name for each in connected["plan"]["pipelines"] for name in each["nodes"]} == {"n1"}
    assert here.admin.get("/v1/runs") == []


def test_each_bad_scenario_is_refused_by_name(here: Plane) -> None:
    viewer = here.people["viewer"]
    for scenario, where, what in BAD:
        answer = here.http.post(
            "/v1/plan",
            content=json.dumps({"scenario": scenario}),  # NaN and all
            headers={"Authorization": f"Bearer {viewer.token}", "Content-Type": "application/json"},
        )
        if answer.status_code == 400:
            assert "is not JSON" in answer.text, "NaN and Infinity are not"
            continue
        assert answer.status_code == 422, (where, answer.text)
        if isinstance(scenario, dict):
            told = [(each["path"], each["message"]) for each in answer.json()["problems"]]
            assert any(path == where and what in message for path, message in told), told


@pytest.mark.parametrize(
    ("scenario", "nodes"),
    [
        (changed("bw", to=[[0.0, 0.0], [0.0, 0.0]]), 1),
        (changed("bw", to=[[0.0, 1e9], [0.0, 0.0]]), 1),
        ({**GOOD, "global_batch": 64, "bw": [[0.0, 1e9], [1e5, 0.0]]}, 1),
        ({**GOOD, "nodes": GOOD["nodes"][:1], "bw": [[0.0]], "lat": [[0.0]]}, 1),
        ({**GOOD, "wind": 3}, 1),
    ],
)
def test_what_is_odd_gets_the_best_plan_there_is(here: Plane, scenario: Any, nodes: int) -> None:
    found = here.people["viewer"].post("/v1/plan", {"scenario": scenario}, expect=200)
    used = {node for each in found["plan"]["pipelines"] for node in each["nodes"]}
    assert len(used) == nodes
    assert ("wind" in str(found["warnings"])) is ("wind" in scenario)


@pytest.mark.parametrize(
    ("cluster", "what"),
    [
        ({"nodes": [{"name": "a"}, {"name": "a"}]}, "more than one node is named a"),
        ({"nodes": [{"name": "a"}], "links": [{"from": "a", "to": "b"}]}, "a link names b"),
        ({"nodes": []}, ""),
        ({"nodes": [{"name": "a", "emulate": {"layer_time_s": 0}}]}, ""),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(here: Plane, cluster: Any, what: str) -> None:
    body = {"spec": {**deepcopy(SPEC), "parallel": "auto"}, "cluster": cluster}
    told = here.people["viewer"].post("/v1/plan", body, expect=422)
    assert what in str(told["problems"])
