"""Submitting: every problem at once, what a node finds wrong, each ask once."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from control.clock import SystemClock
from control.db.sql.engine import Database
from tests.integration.control.api import INFO, SPEC, FakeNode, Plane, plane
from trainmaster.home import Home


@pytest.fixture
def here(db: Database, tmp_path: Path) -> Iterator[Plane]:
    with plane(db, Home(tmp_path / "home"), SystemClock(), allow_drills=True) as made:
        yield made


def spec(**changes: Any) -> dict[str, Any]:
    return {**deepcopy(SPEC), **changes}


def test_with_no_node_connected_the_run_is_stored_and_queued(here: Plane) -> None:
    run = here.people["operator"].post("/v1/runs", {"spec": spec()}, expect=201)
    assert (run["state"], run["target_steps"], run["attempts"]) == ("queued", 20, [])
    assert (run["step"], run["workload"]) == (0, None)
    assert run["goodput"]["wall_s"] >= 0
    assert [each["id"] for each in here.admin.get("/v1/runs")] == [run["id"]]
    assert here.admin.get("/v1/audit")[-1]["target"] == run["id"]


def test_every_problem_of_a_spec_is_told_with_its_path_and_line_and_nothing_is_stored(
    here: Plane,
) -> None:
    text = "name: a\nworkload: nowhere\ntrain:\n  steps: 0\n  global_batsch: 4\n"
    answer = here.admin.call("POST", "/v1/runs", {"text": text})
    assert answer.status_code == 422
    told = {each["path"]: each["line"] for each in answer.json()["problems"]}
    assert told == {
        "workload": 2,
        "train.steps": 4,
        "train.global_batch": 3,
        "train.global_batsch": 5,
    }
    assert here.admin.get("/v1/runs") == []


@pytest.mark.parametrize(
    ("changes", "path", "what"),
    [
        ({}, "parallel", "the model fits in no way"),
        ({"placement": {"labels": {"kind": "gone"}}}, "placement.labels", "kind=gone"),
    ],
)
def test_a_plan_that_is_left_open_and_that_no_node_could_carry_out_is_refused(
    here: Plane, changes: dict[str, Any], path: str, what: str
) -> None:
    layer = {"forward_flops": 1e9, "parameters": 10_000, "output_bytes": 4096}
    layers = [{"index": index, **layer} for index in range(4)]
    described = {"ok": True, "result": {**INFO, "layers": layers}, "problems": []}
    node = FakeNode(here.as_node("n1"), describes=described, profile={"memory_bytes": 4096})
    node.sync()
    with node.in_background():
        asked = {"spec": spec(parallel="auto", **changes)}
        answer = here.admin.post("/v1/runs", asked, expect=422)
    [problem] = answer["problems"]
    assert problem["path"] == path, problem
    assert what in problem["message"]
    assert here.admin.get("/v1/runs") == []


def test_rules_that_do_not_exist_are_refused(here: Plane) -> None:
    answer = here.admin.call("POST", "/v1/runs", {"spec": spec(rules=["default", "gone"])})
    assert answer.status_code == 422
    assert answer.json()["problems"][0]["path"] == "rules"


def test_a_c12_a_rule_that_would_go_below_min_nodes_is_a_conflict_at_submit(here: Plane) -> None:
    rule = {
        "name": "degrades",
        "metric": "applied",
        "when": {"condition": "below", "value": 0.5},
        "mode": "act",
        "actions": [{"action": "degrade"}],
    }
    here.admin.post("/v1/rules", {"rules": [rule]}, expect=201)
    few = spec(placement={"nodes": 3, "min_nodes": 3})
    for asked in (few, {**few, "rules": ["degrades"]}):
        answer = here.admin.call("POST", "/v1/runs", {"spec": asked})
        assert answer.status_code == 422
        [problem] = answer.json()["problems"]
        assert problem["path"] == "placement.min_nodes"
        assert "forbids what the rule 'degrades' does" in problem["message"]
    here.admin.call("POST", "/v1/rules/degrades/disable")
    assert here.admin.call("POST", "/v1/runs", {"spec": few}).status_code == 201


def test_the_same_key_submits_once(here: Plane) -> None:
    body = {"spec": spec(), "idempotency_key": "k1"}
    first = here.admin.post("/v1/runs", body, expect=201)
    assert here.admin.post("/v1/runs", body, expect=200)["id"] == first["id"]
    assert len(here.admin.get("/v1/runs")) == 1
    other = here.admin.call("POST", "/v1/runs", body | {"spec": spec(name="other")})
    assert (other.status_code, other.json()["code"]) == (422, "key_reused")
    assert first["id"] in other.json()["detail"]


def test_a_connected_node_describes_the_workload_before_the_run_is_stored(here: Plane) -> None:
    node = FakeNode(here.as_node("n1"))
    node.turn()
    with node.in_background():
        run = here.admin.post("/v1/runs", {"spec": spec()}, expect=201)
    assert run["state"] == "queued"
    described = run["workload"]
    assert (described["num_layers"], described["data_sha256"]) == (4, INFO["data_sha256"])


def test_bands_that_a_plan_leaves_are_told_at_submit_and_refuse_nothing(here: Plane) -> None:
    node = FakeNode(here.as_node("n1"))
    node.turn()
    with node.in_background():
        asked = spec(parallel={"micro_batch": 1})
        run = here.admin.post("/v1/runs", {"spec": asked}, expect=201)["id"]
    [event] = [
        each for each in here.admin.get(f"/v1/runs/{run}/events") if each["kind"] == "run_submitted"
    ]
    assert "are fewer than 512" in event["because"]
    assert all(sentence in event["because"] for sentence in event["data"]["bands_left"])


def test_what_the_node_finds_wrong_refuses_the_submission(here: Plane) -> None:
    problem = {"path": "params.width", "message": "is not divisible by heads"}
    node = FakeNode(here.as_node("n1"), describes={"ok": False, "problems": [problem]})
    node.turn()
    with node.in_background():
        answer = here.admin.call("POST", "/v1/runs", {"text": "name: a\nworkload: m:w\n"
            "params:\n  width: 5\ntrain: {steps: 1, global_batch: 1}\n"})  # fmt: skip
    assert answer.status_code == 422
    assert answer.json()["problems"] == [{**problem, "line": 4}]
    assert here.admin.get("/v1/runs") == []


def test_data_shorter_than_one_batch_refuses_the_submission(here: Plane) -> None:
    node = FakeNode(here.as_node("n1"))
    node.turn()
    with node.in_background():
        answer = here.admin.call("POST", "/v1/runs", {"text": "name: a\nworkload: m:w\n"
            "data: {source: workload}\ntrain: {steps: 1, global_batch: 65}\n"})  # fmt: skip
    assert answer.status_code == 422
    [problem] = answer.json()["problems"]
    assert (problem["path"], problem["line"]) == ("data.source", 3)
    assert "holds 64 samples, fewer than one batch of 65" in problem["message"]


@pytest.mark.parametrize(
    ("parallel", "path"),
    [
        ({"replicas": 1, "stages": 9}, "parallel.stages"),
        ({"replicas": 4, "stages": 2, "micro_batch": 1}, "parallel"),
        ({"replicas": 3, "micro_batch": 1}, "parallel.replicas"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused_with_the_numbers(
    here: Plane, parallel: dict[str, Any], path: str
) -> None:
    node = FakeNode(here.as_node("n1"))
    node.turn()
    with node.in_background():
        answer = here.admin.call("POST", "/v1/runs", {"spec": spec(parallel=parallel)})
    assert answer.status_code == 422, answer.text
    [problem] = answer.json()["problems"]
    assert problem["path"] == path
    assert any(char.isdigit() for char in problem["message"])


@pytest.mark.parametrize(
    ("checkpoint", "path", "mend"),
    [
        ({"store": "file:///other"}, "checkpoint.store", "write default as before"),
        ({"local": "file:///fast"}, "checkpoint.local", "leave it out as before"),
    ],
)
def test_where_checkpoints_are_cannot_be_amended_and_nothing_is_asked(
    here: Plane, checkpoint: dict[str, str], path: str, mend: str
) -> None:
    operator = here.people["operator"]
    run = operator.post("/v1/runs", {"spec": spec()}, expect=201)["id"]
    changed = {**SPEC.get("checkpoint", {}), **checkpoint}
    body = {"kind": "amend", "args": {"spec": spec(checkpoint=changed)}}
    answer = operator.call("POST", f"/v1/runs/{run}/requests", body)
    assert answer.status_code == 422
    [problem] = answer.json()["problems"]
    assert problem["path"] == path
    assert mend in problem["message"]
    assert operator.get(f"/v1/runs/{run}/requests") == []
