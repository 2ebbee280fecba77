"""`trainmaster plan` where it asks the control plane; asking the planner beside it is in
tests/integration/test_cli_plan.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.trainmaster.cli.command import command
from trainmaster.errors import Problem, SpecError

SPEC = "name: a\nworkload: x:y\ntrain: {steps: 1, global_batch: 4}\nparallel: auto\n"
CLUSTER = """\
nodes:
  - {name: fast, emulate: {layer_time_s: 0.01}}
  - {name: slow, emulate: {layer_time_s: 0.03}}
links:
  - {from: fast, to: slow, latency_ms: 5}
"""
FOUND = {
    "plan": {
        "micro_batch": 1,
        "schedule": "1f1b",
        "zero": 0,
        "pipelines": [{"nodes": ["fast", "slow"], "layers": [3, 1], "micro_batches": 4}],
    },
    "step_time_s": 0.5,
    "lower_bound_s": 0.4,
    "why": ["A step takes 0.5 s."],
    "warnings": ["the memory of some nodes is not known"],
}


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(SPEC)
    return path


def test_a_spec_goes_to_the_control_plane_with_its_cluster(spec: Path, tmp_path: Path):
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(CLUSTER)
    done = command(
        *("plan", "--spec", spec, "--cluster", cluster, "--json"),
        answers={"POST /v1/plan": [FOUND]},
    )
    assert (done.status, done.json) == (0, FOUND)
    body = done.api.bodies("POST", "/v1/plan")[0]
    assert body["spec"]["name"] == "a"
    assert [node["name"] for node in body["cluster"]["nodes"]] == ["fast", "slow"]
    assert body["cluster"]["links"] == [{"from": "fast", "to": "slow", "latency_ms": 5.0}]


def test_people_read_the_plan_and_why(spec: Path):
    done = command("plan", "--spec", spec, answers={"POST /v1/plan": [FOUND]})
    assert done.status == 0
    assert "fast, slow" in done.stdout
    assert "A step takes 0.5 s." in done.stdout
    assert "Warning: the memory of some nodes is not known." in done.stdout


def test_what_the_planner_refuses_gets_the_lines_of_the_file(spec: Path):
    refusal = SpecError([Problem("train.global_batch", "divides into nothing")])
    done = command("plan", "--spec", spec, answers={"POST /v1/plan": [refusal]})
    assert done.status == 2
    assert done.stderr == f"{spec}:3: train.global_batch: divides into nothing\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "give either --scenario FILE or --spec SPEC"),
        (["--scenario", "a", "--spec", "b"], "give either"),
        (["--scenario", "a", "--cluster", "b"], "--cluster goes with --spec"),
        (["--scenario", "/nowhere/at.json"], "no such file"),
    ],
)
def test_what_goes_together(words: list[str], expected: str):
    done = command("plan", *words)
    assert done.status == 2
    assert expected in done.stderr


def test_the_predicted_step_is_drawn_where_that_is_asked(spec: Path):
    bar = {"pipeline": 0, "stage": 1, "kind": "F", "micro_batch": 0, "start_s": 0.0, "end_s": 0.5}
    found = {**FOUND, "gantt": {"bars": [bar], "complete": True}}
    done = command("plan", "--spec", spec, "--gantt", answers={"POST /v1/plan": [found]})
    assert "  0   1  FFFF" in done.stdout
    assert "FFFF" not in command("plan", "--spec", spec, answers={"POST /v1/plan": [found]}).stdout
