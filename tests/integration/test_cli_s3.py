"""Checkpoints in a bucket, from a terminal: what works with a folder works with its URL."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.checkpoints import small_checkpoint
from tests.services.s3 import Bucket
from tests.unit.trainmaster.cli.command import command
from trainmaster.checkpoint.manifest import MANIFEST_NAME, sha256
from worker.storage import open_storage

SPEC = """name: alpha
workload: worker.workloads.byte_gpt:workload
train: {steps: 60, global_batch: 8}
"""


def fill(bucket: Bucket, *steps: int) -> str:
    """Put checkpoints of one run into the bucket; return the URL of the run's folder."""
    storage = open_storage(f"{bucket.url}/r1")
    for step in steps:
        for name, data in small_checkpoint(step=step).items():
            storage.create(f"g1-step{step}/{name}", data)
    return storage.url


def overwrite(folder: str, name: str, data: bytes) -> None:
    storage = open_storage(folder)
    storage.delete(name)
    storage.create(name, data)


def test_a_checkpoint_in_a_bucket_is_verified(s3: Bucket) -> None:
    run = fill(s3, 20)
    done = command("verify", f"{run}/g1-step20", "--json")
    assert done.status == 0, done.stderr
    assert (done.json["run"], done.json["step"], done.json["ok"]) == ("r1", 20, True)
    assert done.api.asked == []
    overwrite(f"{run}/g1-step20", "rank-00001.safetensors", b"\0" * 100)
    done = command("verify", f"{run}/g1-step20/")
    assert done.status == 1
    assert "rank-00001.safetensors: " in done.stderr


def test_weights_in_a_bucket_are_exported(s3: Bucket, tmp_path: Path) -> None:
    run = fill(s3, 20)
    done = command("export-weights", f"{run}/g1-step20", "--out", tmp_path / "out", "--json")
    assert done.status == 0, done.stderr
    assert (done.json["step"], done.json["tensors"]) == (20, 2)
    assert (tmp_path / "out/model.safetensors").stat().st_size > 0


@pytest.mark.parametrize("end", ["", "/"])
def test_a_run_in_a_bucket_is_adopted_and_what_is_damaged_is_left_out(
    s3: Bucket, tmp_path: Path, end: str
) -> None:
    run = fill(s3, 10, 20, 30)
    overwrite(f"{run}/g1-step30", "state.json", b"{}")
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC)
    answers = {"POST /v1/imports": [{"id": "r1", "name": "alpha", "state": "stopped"}]}
    done = command("import", run + end, "--spec", spec, answers=answers)
    assert done.status == 0, done.stderr
    [body] = done.api.bodies("POST", "/v1/imports")
    assert (body["run"], body["root"]) == ("r1", run)
    assert [each["location"] for each in body["checkpoints"]] == [
        f"{run}/g1-step10",
        f"{run}/g1-step20",
    ]
    manifest = small_checkpoint(step=10)[MANIFEST_NAME]
    assert body["checkpoints"][0]["manifest_sha256"] == sha256(manifest)
    assert "g1-step30 is left out: state.json" in done.stderr


def test_one_checkpoint_of_a_bucket_is_adopted_by_itself(s3: Bucket, tmp_path: Path) -> None:
    run = fill(s3, 10, 20)
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC)
    answers = {"POST /v1/imports": [{"id": "r1", "name": "alpha", "state": "stopped"}]}
    done = command("import", f"{run}/g1-step20/", "--spec", spec, answers=answers)
    assert done.status == 0, done.stderr
    [body] = done.api.bodies("POST", "/v1/imports")
    assert (body["root"], [each["step"] for each in body["checkpoints"]]) == (run, [20])


VERBS = ("verify", "export-weights", "import")
NOTHING = "nothing is stored at"


def words(verb: str, url: str, out: Path) -> list[object]:
    return [verb, url, *(["--out", out] if verb == "export-weights" else [])]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("s3://no-such-bucket-here/a/b", "there is no such bucket"),
        ("s3://{bucket}", "is not the URL of a checkpoint's folder"),
        ("s3://key:secret@{bucket}/a/b", "may hold neither a user nor anything after"),
        ("gs://{bucket}/a/b", "no scheme that a storage backend is installed for"),
    ],
)
def test_a_url_that_leads_nowhere_is_refused_in_a_sentence(
    s3: Bucket, tmp_path: Path, verb: str, url: str, what: str
) -> None:
    done = command(*words(verb, url.format(bucket=s3.name), tmp_path / "out"))
    assert done.status in {2, 3}, done.stderr
    assert what in done.stderr
    assert "secret" not in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("verb", "status", "what"),
    [
        ("verify", 1, "manifest.json: expected a file, seen nothing"),
        ("export-weights", 2, NOTHING),
        ("import", 2, NOTHING),
    ],
)
def test_where_nothing_is_stored_that_is_said(
    s3: Bucket, tmp_path: Path, verb: str, status: int, what: str
) -> None:
    run = fill(s3, 20)
    done = command(*words(verb, f"{run}/g1-step99", tmp_path / "out"))
    assert done.status == status, done.stderr
    assert what in done.stderr


@pytest.mark.parametrize(("verb", "status"), [("verify", 1), ("export-weights", 2)])
def test_the_folder_of_a_run_is_no_checkpoint_and_one_in_it_is_named(
    s3: Bucket, tmp_path: Path, verb: str, status: int
) -> None:
    done = command(*words(verb, fill(s3, 20), tmp_path / "out"))
    assert done.status == status, done.stderr
    assert "holds checkpoints and is none: name one, such as g1-step20" in done.stderr


def test_a_torch_file_in_a_bucket_is_to_be_copied_here_first(s3: Bucket) -> None:
    open_storage(f"s3://{s3.name}/pt").create("model.pt", b"\x80\x04.")
    done = command("import", f"s3://{s3.name}/pt/model.pt")
    assert done.status == 2, done.stderr
    assert "a starting point, from a path of this machine: copy it here first" in done.stderr
    assert done.api.asked == []
