"""A run goes on under quite another layout, and what no test has proven is refused at the door."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.scenarios.ring import Ring, tiny


def test_a_run_is_restored_onto_other_schedules_and_sharings(
    ring: Ring, corpus: Path, tmp_path: Path
):
    spec = tiny("moves", corpus, steps=2000)
    spec["parallel"] |= {"schedule": "zbv_zero_bubble", "zero": 2, "micro_batch": 2}
    run = ring.submit(spec)
    ring.wait_for_step(run, 22)
    plans = {
        "spread": {"stages": 2, "tensor": 2, "micro_batch": 2, "schedule": "interleaved_1f1b"},
        "ragged": {
            "micro_batch": 2,
            "zero": 1,
            "pipelines": [
                {"layers": [1, 1, 2], "micro_batches": 5},
                {"layers": [4], "micro_batches": 3},
            ],
        },
    }
    for generation, (name, plan) in enumerate(plans.items(), start=2):
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump(plan))
        newest = [each for each in ring.json("checkpoints", run) if each["state"] != "retired"][-1]
        ring.call("restore", run, newest["id"], "--plan", file)
        ring.wait_for_step(run, newest["step"] + 12)
        shown = ring.show(run)
        assert shown["generation"] == generation
        if name == "spread":
            places = [(rank["stage"], rank["tensor"]) for rank in shown["ranks"]]
            assert places == [(0, 0), (0, 1), (1, 0), (1, 1)]
    ring.json("stop", run)
    done = ring.show(run)
    assert done["state"] == "stopped"
    assert [each["plan"]["schedule"] for each in done["attempts"]] == [
        "zbv_zero_bubble",
        "interleaved_1f1b",
        "1f1b",
    ]


def test_a_cell_that_is_not_proven_is_refused_with_the_line(
    ring: Ring, corpus: Path, tmp_path: Path
):
    spec = tiny("refused", corpus)
    spec["parallel"] |= {"schedule": "dualpipev", "zero": 3}
    file = tmp_path / "refused.yaml"
    file.write_text(yaml.safe_dump(spec))
    refused = ring.call("submit", file, expect=2)
    assert "parallel.zero: 3 gives wrong gradients, without an error" in refused.stderr
