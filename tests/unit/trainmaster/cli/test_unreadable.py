"""A stored value that cannot be read: named by `doctor` with its mend, and shown by `show`."""

from __future__ import annotations

from tests.unit.trainmaster.cli.command import command

MEND = "`python -m control mend r1` takes the spec from generation 2"
FINDING = {
    "table": "runs",
    "row": "id r1",
    "column": "spec",
    "run": "r1",
    "problem": "train: Field required",
    "mend": MEND,
}


def test_a_b04_the_doctor_names_the_run_what_is_wrong_and_the_mend():
    done = command(
        "doctor",
        "--json",
        answers={"GET /v1/nodes": [[]], "GET /v1/about": [{}], "GET /v1/unreadable": [[FINDING]]},
    )
    assert done.status == 1
    [check] = [each for each in done.json if each["name"] == "run r1"]
    assert check["state"] == "bad"
    for words in ("spec of runs", "train: Field required", MEND):
        assert words in check["message"]


def test_a_b04_a_run_that_cannot_be_read_is_shown_with_why():
    run = {
        "id": "r1",
        "name": "alpha",
        "state": "running",
        "desired": "running",
        "step": 0,
        "target_steps": 0,
        "spec": None,
        "plan": None,
        "goodput": None,
        "attempts": [],
        "ranks": [],
        "unreadable": "train: Field required; `trainmaster doctor` says how to mend it",
    }
    done = command("show", "r1", answers={"GET /v1/runs/r1": [run]})
    assert done.status == 0
    assert "train: Field required" in done.stdout
    listed = command("runs", answers={"GET /v1/runs": [[run]]})
    assert listed.status == 0
    assert "alpha" in listed.stdout
