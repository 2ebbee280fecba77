"""`trainmaster plan --scenario` with no control plane: the planner beside the command answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCENARIO: dict[str, Any] = {
    "nodes": [
        {"name": "a", "type": "A", "flops": 4e12, "mem": 1e10},
        {"name": "b", "type": "B", "flops": 1e12, "mem": 1e10},
    ],
    "layers": [{"fwd": 2e9, "params": 1e6, "out": 1e5, "act": 1e6}] * 4,
    "bw": [[0.0, 1e9], [1e9, 0.0]],
    "lat": [[0.0, 1e-5], [1e-5, 0.0]],
    "global_batch": 64,
    "micro_batch_choices": [1, 2],
}


def plan(path: Path, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if key != "TRAINMASTER_URL"}
    return subprocess.run(
        [sys.executable, "-m", "trainmaster.cli", "plan", "--scenario", str(path), *words],
        capture_output=True,
        text=True,
        timeout=120,
        env={**kept, "TRAINMASTER_HOME": str(home)},
        check=False,
    )


def test_a_scenario_needs_no_control_plane(tmp_path: Path):
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(SCENARIO))
    done = plan(path, tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["exact"]
    assert found["step_time_s"] >= found["lower_bound_s"] > 0
    assert 0 < found["search_s"] < 60
    shares = [each["micro_batches"] for each in found["plan"]["pipelines"]]
    assert sum(shares) * found["plan"]["micro_batch"] == 64
    assert not (tmp_path / "trainmaster.db").exists()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"global_batch": 7, "micro_batch_choices": [2]}, "global_batch: 7 samples are not"),
        ({"nodes": [{"name": "a", "flops": float("nan"), "mem": 1}]}, "nodes[0].flops: must be a"),
        ({"nodes": [SCENARIO["nodes"][0]] * 2}, "nodes[1].name: 'a' is the name of nodes[0]"),
        ({"zero_choices": [4]}, "zero_choices: 4 must be 0 to 3"),
        ({"objective": "goodput"}, "objective: goodput needs mtbf_s of nodes"),
        ({"min_replicas": 3, "max_replicas": 2}, "min_replicas: 3 is above max_replicas"),
        ({"layers": [{"fwd": 2e9, "params": 1e12, "out": 1, "act": 1}]}, "fits in no way"),
    ],
)
def test_a_bad_scenario_exits_2_with_the_place(tmp_path: Path, change, expected):
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps({**SCENARIO, **change}))
    done = plan(path, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{path}:1:" in done.stderr
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_neither_json_nor_yaml_is_told(tmp_path: Path):
    path = tmp_path / "scenario.json"
    path.write_text("{")
    done = plan(path, tmp_path)
    assert done.returncode == 2
    assert "is not YAML" in done.stderr
