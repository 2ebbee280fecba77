"""`timeline`: records a step, waits for it, and shows where its time went."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.unit.trainmaster.cli.command import command

TIMELINES = "GET /v1/runs/r1/timelines"
SUMMARY = {
    "bubble_ratio": 0.31,
    "compute_ratio": 0.6,
    "optimizer_ratio": 0.05,
    "exposed_comm_ratio": 0.3,
    "idle_ratio": 0.05,
    "waited_unsent_s": 0.02,
    "waited_under_way_s": 0.001,
    "waited_unasked_s": 0.004,
}


def recorded(step: int, ranks: int = 2, generation: int = 1) -> dict[str, Any]:
    return {"generation": generation, "step": step, "ranks": ranks}


def shown(step: int) -> dict[str, Any]:
    ranks = [
        {"rank": rank, "replica": 0, "place": rank, "node": "oak", "start_s": 0.0, "end_s": 0.1}
        | {"summary": SUMMARY}
        for rank in range(2)
    ]
    planned = [{"because": None, "ranks": [{"rank": 0, "bubble_ratio": 0.27}]}]
    return {
        "generation": 1,
        "step": step,
        "at": "2026-03-01T00:00:00Z",
        "clock_error_s": 2e-5,
        "missing_ranks": [],
        "ranks": ranks,
        "planned": planned,
    }


def test_the_newest_recorded_step_is_shown_beside_its_plan() -> None:
    answers = {
        TIMELINES: [[recorded(10), recorded(20)]],
        f"{TIMELINES}/20": [shown(20)],
    }
    done = command("timeline", "r1", answers=answers)
    assert done.status == 0
    for part in ("20 of generation 1", "31.0%", "27.0%", "0.020 ms", "100.00 ms", "20.00 ms"):
        assert part in done.stdout, part


def test_a_step_is_recorded_and_waited_for_until_all_ranks_have_told_it() -> None:
    answers = {
        "POST /v1/runs/r1/requests": [
            {"id": 7, "kind": "timeline", "state": "applied", "step": 29, "because": ""}
        ],
        "GET /v1/runs/r1/ranks": [[{}, {}]],
        TIMELINES: [[], [recorded(30, ranks=1)], [recorded(30)]],
        f"{TIMELINES}/30": [shown(30)],
    }
    done = command("timeline", "r1", "--record", "--json", answers=answers)
    assert (done.status, done.json["step"]) == (0, 30)
    [sent] = done.api.bodies("POST", "/v1/runs/r1/requests")
    assert (sent["kind"], sent["args"]) == ("timeline", {})


def test_a_trace_is_written_for_perfetto(tmp_path: Path) -> None:
    trace = {"traceEvents": []}
    answers = {TIMELINES: [[recorded(5)]], f"{TIMELINES}/5": [shown(5), trace]}
    done = command("timeline", "r1", "--chrome", tmp_path / "t.json", answers=answers)
    assert done.status == 0
    assert json.loads((tmp_path / "t.json").read_text()) == trace
    assert "perfetto" in done.stderr


def test_a_run_without_a_recorded_step_is_told_how_to_get_one() -> None:
    done = command("timeline", "r1", answers={TIMELINES: [[]]})
    assert (done.status, done.stdout) == (2, "")
    assert "--record" in done.stderr


def test_a_recording_cannot_choose_its_step() -> None:
    done = command("timeline", "r1", "--record", "--step", "4", answers={})
    assert done.status == 2
    assert "leave --step" in done.stderr
