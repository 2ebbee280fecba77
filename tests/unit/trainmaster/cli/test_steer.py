"""Requests: sent once, waited for, and told as they ended."""

from pathlib import Path

import pytest

from tests.unit.trainmaster.cli.command import command
from trainmaster.errors import ConflictError, Problem, SpecError, UnavailableError

REQUESTS = "POST /v1/runs/r1/requests"


def request(kind: str, state: str, because: str = "") -> dict:
    return {"id": 7, "kind": kind, "state": state, "because": because}


def test_a_steering_command_returns_when_its_request_is_applied():
    answers = {
        REQUESTS: [request("checkpoint", "pending")],
        "GET /v1/requests/7": [
            request("checkpoint", "accepted"),
            UnavailableError("away"),
            request("checkpoint", "applied"),
        ],
    }
    done = command("checkpoint", "r1", "--why", "before lunch", "--json", answers=answers)
    assert (done.status, done.json["state"]) == (0, "applied")
    [sent] = done.api.bodies("POST", "/v1/runs/r1/requests")
    assert (sent["kind"], sent["args"], sent["why"]) == ("checkpoint", {}, "before lunch")


def test_a_refused_request_is_status_4_with_the_reason():
    answers = {REQUESTS: [request("resume", "refused", "the run is running")]}
    done = command("resume", "r1", answers=answers)
    assert (done.status, done.stdout) == (4, "")
    assert "the run is running" in done.stderr


def test_a_request_that_clashes_with_another_is_status_4():
    answers = {REQUESTS: [ConflictError("a restore is already under way")]}
    assert command("restore", "r1", "r1-g1-s10", answers=answers).status == 4


def test_pause_returns_only_once_the_run_shows_paused():
    answers = {
        REQUESTS: [request("pause", "applied")],
        "GET /v1/runs/r1": [{"state": "pausing"}, UnavailableError("away"), {"state": "paused"}],
    }
    done = command("pause", "r1", answers=answers)
    assert done.status == 0
    assert len(done.api.bodies("GET", "/v1/runs/r1")) == 3


def test_a_run_that_ends_before_it_pauses_is_told():
    answers = {
        REQUESTS: [request("pause", "applied")],
        "GET /v1/runs/r1": [{"state": "succeeded"}],
    }
    assert command("pause", "r1", answers=answers).status == 4


def test_hold_waits_for_held():
    answers = {REQUESTS: [request("pause", "applied")], "GET /v1/runs/r1": [{"state": "held"}]}
    done = command("pause", "r1", "--hold", answers=answers)
    assert done.status == 0
    assert done.api.bodies("POST", "/v1/runs/r1/requests")[0]["args"] == {"hold": True}


def test_no_wait_asks_and_leaves():
    done = command("stop", "r1", "--no-wait", answers={REQUESTS: [request("stop", "pending")]})
    assert done.status == 0
    assert [method for method, _, _ in done.api.asked] == ["POST"]


def test_a_request_that_nothing_comes_of_is_status_1():
    answers = {
        REQUESTS: [request("stop", "pending")],
        "GET /v1/requests/7": [request("stop", "pending")],
    }
    done = command("stop", "r1", "--timeout", "5", answers=answers)
    assert done.status == 1
    assert "still pending after 5 s" in done.stderr


def test_asking_again_after_a_lost_answer_uses_the_same_key():
    answers = {REQUESTS: [UnavailableError("timeout"), request("stop", "applied")]}
    done = command("stop", "r1", answers=answers)
    first, second = done.api.bodies("POST", "/v1/runs/r1/requests")
    assert first["idempotency_key"] == second["idempotency_key"]


@pytest.mark.parametrize("text", ["parallel: {replicas: 1, stages: 2}", "{replicas: 1, stages: 2}"])
def test_a_plan_file_holds_the_section_with_or_without_its_key(tmp_path: Path, text):
    plan = tmp_path / "plan.yaml"
    plan.write_text(text)
    options = ["--plan", plan, "--skip-steps", 5, "--lr-factor", 0.5, "--forget-skips"]
    answers = {REQUESTS: [request("restore", "applied")]}
    done = command("restore", "r1", "r1-g1-s10", *options, answers=answers)
    assert done.status == 0
    assert done.api.bodies("POST", "/v1/runs/r1/requests")[0]["args"] == {
        "checkpoint": "r1-g1-s10",
        "skip_steps": 5,
        "lr_factor": 0.5,
        "forget_skips": True,
        "plan": {"replicas": 1, "stages": 2},
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("parallel:\n  stages: 2\n  replicas: 3", "3: parallel.replicas"),
        ("stages: 2\nreplicas: 3", "2: replicas"),
    ],
)
@pytest.mark.parametrize("path", ["plan.replicas", "parallel.replicas"])
def test_problems_with_a_plan_have_the_lines_of_its_file(tmp_path: Path, text, told, path):
    plan = tmp_path / "plan.yaml"
    plan.write_text(text)
    refusal = SpecError([Problem(path, "does not fit")])
    done = command("restore", "r1", "r1-g1-s10", "--plan", plan, answers={REQUESTS: [refusal]})
    assert (done.status, done.stderr) == (2, f"{plan}:{told}: does not fit\n")


def test_a_drill_is_a_request_too():
    words = ["drill", "r1", "nan", "--rank", 1, "--at-step", 40, "--for", "5steps", "--sticky"]
    done = command(*words, answers={REQUESTS: [request("drill", "applied")]})
    assert done.status == 0
    assert done.api.bodies("POST", "/v1/runs/r1/requests")[0]["args"] == {
        "fault": "nan",
        "rank": 1,
        "at_step": 40,
        "steps": 5,
        "sticky": True,
    }


def test_a_dry_run_only_asks_what_would_be():
    answers = {"POST /v1/runs/r1/restore-preview": [{"sentences": ["20 steps are lost"]}]}
    done = command("restore", "r1", "r1-g1-s10", "--dry-run", answers=answers)
    assert (done.status, done.stdout) == (0, "20 steps are lost\n")
    assert [path for _, path, _ in done.api.asked] == ["/v1/runs/r1/restore-preview"]


def test_a_verification_is_waited_for_and_tells_what_is_wrong():
    chore = {"id": "chore-3", "kind": "verify", "state": "pending"}
    found = {"message": "rank-00000.safetensors: block 0: expected sha256:1, seen sha256:2"}
    ended = {**chore, "state": "applied", "ok": False, "findings": [found]}
    answers = {
        "POST /v1/checkpoints/r1-g1-s10/verify": [chore],
        "GET /v1/requests/chore-3": [UnavailableError("away"), ended],
    }
    done = command("verify", "r1-g1-s10", answers=answers)
    assert (done.status, done.stdout, done.stderr) == (1, "", f"{found['message']}\n")
