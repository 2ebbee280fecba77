"""Checkpoints in and out, from a terminal: with a path, nothing else need run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.checkpoints import small_checkpoint
from tests.unit.trainmaster.cli.command import command
from trainmaster.checkpoint.manifest import MANIFEST_NAME
from trainmaster.cli.weights import workload_of
from trainmaster.errors import UserError

SPEC = {
    "name": "alpha",
    "workload": "worker.workloads.byte_gpt:workload",
    "train": {"steps": 60, "global_batch": 8},
}


def write(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True)
    for name, data in small_checkpoint(**changes).items():
        (folder / name).write_bytes(data)
    return folder


def test_weights_of_a_folder_are_exported_with_no_control_plane(tmp_path: Path) -> None:
    folder = write(tmp_path / "r1/g1-step20")
    done = command("export-weights", folder, "--out", tmp_path / "out", "--json")
    assert done.status == 0, done.stderr
    assert done.api.asked == []
    assert (done.json["run"], done.json["step"], done.json["tensors"]) == ("r1", 20, 2)
    assert (tmp_path / "out/model.safetensors").stat().st_size > 0
    assert len(done.json["weights_sha256"]) == 64


def test_weights_of_an_id_are_found_where_the_control_plane_says(tmp_path: Path) -> None:
    folder = write(tmp_path / "r1/g1-step20")
    found = {"state": "committed", "location": folder.as_uri(), "because": ""}
    for sha, status in (("sha256:" + "0" * 64, 1), (_sha(folder), 0)):
        answers = {"GET /v1/checkpoints/r1-g1-s20": [{**found, "manifest_sha256": sha}]}
        done = command(
            "export-weights", "r1-g1-s20", "--out", tmp_path / f"{status}", answers=answers
        )
        assert done.status == status, done.stderr
    bad = {**found, "state": "quarantined", "because": "a digest differs", "manifest_sha256": "x"}
    answers = {"GET /v1/checkpoints/r1-g1-s20": [bad]}
    done = command("export-weights", "r1-g1-s20", "--out", tmp_path / "q", answers=answers)
    assert done.status == 4
    assert "quarantined: a digest differs" in done.stderr


def test_weights_of_two_folders_are_compared_with_no_control_plane(tmp_path: Path) -> None:
    first = write(tmp_path / "r1/g1-step20", fill=1)
    second = write(tmp_path / "r2/g1-step30", fill=3, step=30)
    done = command("compare", first, second, "--json")
    assert done.status == 0, done.stderr
    assert done.api.asked == []
    assert (done.json["whole"]["elements"], done.json["whole"]["changed"]) == (14, 9)
    assert [each["name"] for each in done.json["tensors"]] == ["a", "b"]
    told = command("compare", first, second)
    assert [word for word in told.stdout.split() if word == "all"] == ["all"]


def test_a_comparison_with_weights_that_are_not_finite_names_the_layer() -> None:
    figures = {"elements": 2, "changed": 1, "norm": 1.0, "other_norm": 1.0, "difference_norm": 0.0}
    figures |= {"relative_difference": 0.0, "largest_difference": 0.0, "not_finite": 0}
    whole = {**figures, "other_not_finite": 1}
    found = {"state": "applied", "ok": True, "whole": whole, "without_counterpart": 0}
    found["layers"] = [{**whole, "layer": 3, "tensors": 1}, {**figures, "layer": 4, "tensors": 1}]
    answers = {"POST /v1/checkpoints/r1-g1-s20/compare/r1-g1-s30": [found]}
    done = command("compare", "r1-g1-s20", "r1-g1-s30", answers=answers)
    assert done.status == 0, done.stderr
    assert "1 numbers of the other are not finite (layer 3)" in done.stderr


def test_two_ids_are_compared_by_a_node_and_what_it_found_wrong_is_told() -> None:
    answers = {
        "POST /v1/checkpoints/r1-g1-s20/compare/r1-g1-s30": [
            {"id": "chore-1", "kind": "compare", "state": "pending"}
        ],
        "GET /v1/requests/chore-1": [
            {
                "id": "chore-1",
                "kind": "compare",
                "state": "applied",
                "ok": False,
                "findings": [{"message": "rank-00000.safetensors: block 3: expected a, seen b"}],
            }
        ],
    }
    done = command("compare", "r1-g1-s20", "r1-g1-s30", answers=answers)
    assert done.status == 1
    assert "could not be compared: rank-00000.safetensors: block 3" in done.stderr


def _sha(folder: Path) -> str:
    from trainmaster.checkpoint.manifest import sha256

    return sha256((folder / MANIFEST_NAME).read_bytes())


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["nowhere", "--out", "o"], "neither a checkpoint's id nor a folder"),
        (["RUN", "--out", "o"], "name one, such as g1-step20"),
        (["RUN/g1-step20", "--out", "o", "--format", "pt"], "safetensors or hf"),
        (["RUN/g1-step20", "--out", "o", "--format", "hf"], "export it as safetensors"),
        (["DCP", "--out", "o"], "torch.distributed.checkpoint directory"),
    ],
)
def test_what_cannot_be_exported_is_refused_in_a_sentence(
    tmp_path: Path, words: list[str], what: str
) -> None:
    write(tmp_path / "RUN/g1-step20")
    (tmp_path / "DCP").mkdir()
    (tmp_path / "DCP/.metadata").write_bytes(b"\x80\x04.")
    given = [str(tmp_path / word) if word[0].isupper() else word for word in words]
    done = command("export-weights", *given)
    assert done.status == 2, done.stderr
    assert what in done.stderr
    assert not Path("o").exists()


@pytest.mark.parametrize(
    "spec", [None, "text", [1], {}, {"workload": 3}, {"workload": ""}, {"workload": None}]
)
def test_a_spec_that_names_no_workload_is_told_in_a_sentence(spec: object):
    with pytest.raises(UserError, match="does not tell which workload"):
        workload_of(spec)


@pytest.mark.parametrize("data", [None, "x", [1], {"source": 3}])
def test_of_a_strange_spec_what_can_be_read_is_taken(data: object):
    given = {"workload": "a:b", "params": [], "data": data}
    assert workload_of(given) == ("a:b", {}, "workload")


def run_folder(tmp_path: Path) -> Path:
    for step in (10, 20, 30):
        write(tmp_path / f"r1/g1-step{step}", step=step)
    return tmp_path / "r1"


def test_a_runs_folder_is_adopted_and_what_is_damaged_is_left_out(tmp_path: Path) -> None:
    run = run_folder(tmp_path)
    with (run / "g1-step30/rank-00001.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xff")
    spec = tmp_path / "spec.yaml"
    spec.write_text(json.dumps(SPEC))
    answer = {"id": "r1", "name": "alpha", "state": "stopped"}
    done = command("import", run, "--spec", spec, "--json", answers={"POST /v1/imports": [answer]})
    assert done.status == 0, done.stderr
    [body] = done.api.bodies("POST", "/v1/imports")
    assert (body["run"], body["root"], body["spec"]) == ("r1", run.as_uri(), json.dumps(SPEC))
    assert [each["step"] for each in body["checkpoints"]] == [10, 20]
    assert body["checkpoints"][0]["manifest_sha256"] == _sha(run / "g1-step10")
    assert "g1-step30 is left out: rank-00001.safetensors: block 0: expected sha256:" in done.stderr
    assert [each["checkpoint"] for each in done.json["left_out"]] == ["g1-step30"]


def test_one_checkpoint_is_adopted_by_itself(tmp_path: Path) -> None:
    run, spec = run_folder(tmp_path), tmp_path / "spec.yaml"
    spec.write_text(json.dumps(SPEC))
    answer = {"id": "r1", "name": "alpha", "state": "stopped"}
    done = command(
        "import", run / "g1-step20", "--spec", spec, answers={"POST /v1/imports": [answer]}
    )
    assert done.status == 0, done.stderr
    [body] = done.api.bodies("POST", "/v1/imports")
    assert [each["step"] for each in body["checkpoints"]] == [20]
    assert "r1 (alpha) is adopted, stopped" in done.stdout


def test_a_bad_spec_is_told_with_its_lines_before_anything_is_read(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text("name: alpha\nworkload: a:b\ntrain: {steps: 0, global_batch: 1}\n")
    done = command("import", run_folder(tmp_path), "--spec", spec)
    assert (done.status, done.api.asked) == (2, [])
    assert done.stderr.startswith(f"{spec}:3: train.steps: should be greater")


FOREIGN = {
    "DCP": ([".metadata", "__0_0.distcp"], "a torch checkpoint: name the spec"),
    "MEGATRON": (
        ["latest_checkpointed_iteration.txt", "iter_0000100/mp_rank_00/model_optim_rng.pt"],
        "a Megatron checkpoint",
    ),
    "HF": (["model.safetensors", "config.json"], "a Hugging Face model directory"),
    "OTHER": (["notes.txt"], "holds no checkpoint"),
    "EMPTY": ([], "holds no checkpoint"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_x_chec01_and_x_chec03_foreign_directories_are_named_and_nothing_is_asked(
    tmp_path: Path, kind: str
) -> None:
    names, what = FOREIGN[kind]
    for name in names:
        (tmp_path / kind / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / kind / name).write_bytes(b"release" if name.endswith("txt") else b"\x80\x04.")
    (tmp_path / kind).mkdir(exist_ok=True)
    done = command("import", tmp_path / kind)
    assert done.status == 2, done.stderr
    assert what in done.stderr
    assert done.api.asked == []


def test_a_folder_without_a_whole_checkpoint_or_a_spec_is_refused(tmp_path: Path) -> None:
    run = run_folder(tmp_path)
    assert "--spec FILE" in command("import", run).stderr
    for step in (10, 20, 30):
        (run / f"g1-step{step}/state.json").unlink()
    done = command("import", run)
    assert done.status == 1
    assert "none of its 3 checkpoints is whole" in done.stderr
    assert "state.json: expected a file, seen nothing: it is missing" in done.stderr
