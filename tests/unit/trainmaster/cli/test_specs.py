"""Specs on their way to the control plane: files, `--set`, and problems with their lines."""

from pathlib import Path

import pytest

from tests.unit.trainmaster.cli.command import command
from trainmaster.errors import Problem, SpecError

SPEC = """\
name: tiny
workload: worker.workloads.byte_gpt:workload
train:
  steps: 10
  global_batch: 16
parallel:
  replicas: 3
"""
CREATED = {"id": "r1", "name": "tiny", "state": "queued"}


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(SPEC)
    return path


def test_a_spec_is_submitted_with_its_settings_applied(spec: Path):
    settings = ["--set", "train.steps=5", "--set", "train.optimizer.lr=1e-3"]
    done = command("submit", spec, *settings, "--json", answers={"POST /v1/runs": [CREATED]})
    assert (done.status, done.json) == (0, CREATED)
    sent = done.api.bodies("POST", "/v1/runs")[0]["spec"]
    assert sent["train"] == {"steps": 5, "global_batch": 16, "optimizer": {"lr": 1e-3}}


def test_every_problem_is_told_at_once_with_its_line_and_nothing_is_sent(tmp_path: Path):
    path = tmp_path / "bad.yaml"
    path.write_text(
        "name: a/b\nworkload: x:y\ntrain:\n  steps: 0\n  global_batch: 4\ncolour: red\n"
    )
    done = command("submit", path)
    assert (done.status, done.stdout, done.api.asked) == (2, "", [])
    lines = done.stderr.splitlines()
    assert [line.rpartition(f"{path}:")[2].split(":")[0] for line in lines] == ["1", "4", "6"]
    assert lines[1].startswith(f"{path}:4: train.steps: ")


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (SPEC.encode("utf-16"), "1: (document): is not a text file: byte 0 is not UTF-8"),
        (b"name: a\nworkload: \xe9\n", "2: (document): is not a text file: byte 18"),
        (b"#" * (9 << 20), "1: (document): has more than 8 MiB"),
    ],
)
def test_what_is_no_text_is_told_like_any_problem(tmp_path: Path, data: bytes, told: str):
    path = tmp_path / "bad.yaml"
    path.write_bytes(data)
    done = command("submit", path)
    assert (done.status, done.stdout, done.api.asked) == (2, "", [])
    assert done.stderr.startswith(f"{path}:{told}")


def test_problems_that_the_control_plane_finds_get_the_lines_of_the_file(spec: Path):
    refusal = SpecError([Problem("parallel.replicas", "16 micro-batches\nfor 3 replicas")])
    done = command("submit", spec, answers={"POST /v1/runs": [refusal]})
    assert done.status == 2
    assert done.stderr == f"{spec}:7: parallel.replicas: 16 micro-batches for 3 replicas\n"


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ("train.steps", "key.path=value"),
        ("=3", "key.path=value"),
        ("a..b=3", "key.path=value"),
        ("name.first=x", "not a mapping"),
        ("name=[", "not YAML"),
    ],
)
def test_a_setting_that_cannot_be_applied_says_why(spec: Path, setting, word):
    done = command("submit", spec, "--set", setting)
    assert done.status == 2
    assert word in done.stderr


@pytest.mark.parametrize("content", [b"\x00\xff\x00", b"[1, 2]", b"", b"a: b: c"])
def test_a_file_that_is_no_spec_is_refused_in_a_sentence(tmp_path: Path, content):
    path = tmp_path / "spec.yaml"
    path.write_bytes(content)
    done = command("submit", path)
    assert done.status == 2
    assert str(path) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("path", ["/nowhere/spec.yaml", "/tmp", "a\0b", "/dev/zero", "x" * 5000])
def test_a_path_that_is_no_file_is_refused_in_a_sentence(path):
    done = command("submit", path)
    assert done.status == 2
    assert done.stderr.strip()


@pytest.mark.parametrize(("state", "status"), [("succeeded", 0), ("failed", 1), ("stopped", 1)])
def test_waiting_ends_with_the_status_of_the_run(spec: Path, state, status):
    running = {**CREATED, "state": "running", "step": 1, "target_steps": 10, "generation": 1}
    over = {**running, "state": state, "step": 10, "because": "so it was"}
    answers = {"POST /v1/runs": [CREATED], "GET /v1/runs/r1": [running, over]}
    done = command("submit", spec, "--wait", "--json", answers=answers)
    assert (done.status, done.json) == (status, over)
    assert "step 1/10" in done.stderr
