"""`trainmaster calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.unit.trainmaster.cli.command import command
from trainmaster.errors import ConflictError

CALIBRATION = {
    "at": "2026-01-01T00:00:00Z",
    "age_s": 1.0,
    "device": "cpu",
    "flops": {"float32": {"value": 4.5e10, "spread": 0.02}},
    "layer_time_s": None,
    "memory_bytes_per_s": {"value": 1e10, "spread": 0.0},
    "to_device_bytes_per_s": None,
    "links": {"elm": {"latency_s": 0.002, "bytes_per_s": 5e7, "residual": 0.04, "message_s": {}}},
    "unmeasured": {"fig": "it takes no messages"},
}
ASKED = {"id": "chore-3", "kind": "calibrate", "state": "pending"}
DONE = {**ASKED, "state": "applied", "ok": True, "findings": []}


def answers(**more: Any) -> dict[str, Any]:
    return {
        "GET /v1/nodes": [[{"name": "oak", "state": "present"}, {"name": "gone", "state": "lost"}]],
        "POST /v1/nodes/oak/calibrate": [ASKED],
        "GET /v1/requests/chore-3": [ASKED, DONE],
        "GET /v1/nodes/oak": [{"name": "oak", "profile": {"calibration": CALIBRATION}}],
        **more,
    }


def test_all_nodes_that_are_there_are_measured_and_shown():
    done = command("calibrate", answers=answers())
    assert done.status == 0, done.stderr
    for word in ("oak", "float32 4.5e+10 (spread 2%)", "elm", "2 ms", "4%"):
        assert word in done.stdout
    assert "from oak to fig: not measured: it takes no messages" in done.stderr
    told = command("calibrate", "oak", "--json", answers=answers())
    assert told.json == [{"node": "oak", "calibration": CALIBRATION}]


def test_what_could_not_be_measured_is_told_with_its_reason():
    failed = {**DONE, "ok": False, "findings": [{"message": "torch is too old"}]}
    done = command("calibrate", "oak", answers=answers(**{"GET /v1/requests/chore-3": [failed]}))
    assert (done.status, done.stdout) == (1, "")
    assert "torch is too old" in done.stderr
    busy = answers(**{"POST /v1/nodes/oak/calibrate": [ConflictError("run r has slots of oak")]})
    assert command("calibrate", "oak", answers=busy).status == 4
    every = command("calibrate", "--json", answers=busy)
    assert (every.status, every.json) == (1, [])
    assert "oak was not measured: run r has slots of oak" in every.stderr
    for_people = command("calibrate", answers=busy)
    assert (for_people.status, for_people.stdout) == (1, "")
    assert "oak was not measured: run r has slots of oak" in for_people.stderr


def test_a_bad_spec_is_told_with_its_lines_before_any_node_is_asked(tmp_path: Path):
    spec = tmp_path / "spec.yaml"
    spec.write_text("name: a\nworkload: a:b\ntrain: {steps: 0, global_batch: 1}\n")
    done = command("calibrate", "--spec", spec, answers=answers())
    assert (done.status, done.api.asked) == (2, [])
    assert done.stderr.startswith(f"{spec}:3: train.steps: should be greater")


def test_without_a_node_there_is_nothing_to_measure():
    done = command("calibrate", answers={"GET /v1/nodes": [[]]})
    assert done.status == 2
    assert "trainmaster agent" in done.stderr
