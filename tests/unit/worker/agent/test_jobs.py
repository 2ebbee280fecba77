"""What an agent does to checkpoints, on real folders."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from trainmaster.errors import IntegrityError, UnavailableError
from worker.agent.jobs import Jobs
from worker.checkpoint.writer import Saved, save
from worker.storage import open_storage


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    return save(
        open_storage((tmp_path / "r1").as_uri()),
        run="r1",
        generation=1,
        step=20,
        layout={},
        parent=None,
        tensors={"model/w": torch.ones(100)},
        state={"step": 20},
        group=None,
        rank=0,
        world_size=1,
    )


def test_a_store_is_looked_through_for_folders_whole_and_not(saved: Saved, tmp_path: Path) -> None:
    root = tmp_path / "r1"
    (root / "g1-step30").mkdir()
    (root / "g1-step30" / ".rank-00000.safetensors.0123.unfinished").write_bytes(b"half")
    (root / "g1-step40").mkdir()
    (root / "g1-step40" / "state.json").write_bytes(b"{}")
    (root / "lost+found").mkdir()
    (root / "probe-0123").write_bytes(b"x")
    found = Jobs().list({"root": root.as_uri()})
    assert found["folders"] == [
        {"name": "g1-step20", "committed": True, "bytes": 0},
        {"name": "g1-step30", "committed": False, "bytes": 0},
        {"name": "g1-step40", "committed": False, "bytes": 2},
    ]
    for name in ("g1-step30", "g1-step40"):
        Jobs().retire({"location": f"{root.as_uri()}/{name}"})
    assert [each["name"] for each in Jobs().list({"root": root.as_uri()})["folders"]] == [
        "g1-step20"
    ]


def test_a_scrub_tells_what_a_verification_tells(saved: Saved) -> None:
    args = {"location": saved.location, "manifest_sha256": saved.manifest_sha256}
    slow = Jobs().scrub({**args, "bytes_per_s": 1 << 40})
    assert slow == Jobs().verify(args)
    assert slow["sound"]


def test_a_checkpoint_is_compared_with_another(saved: Saved) -> None:
    job = Jobs().of("compare")
    assert job is not None
    both = {
        "location": saved.location,
        "manifest_sha256": saved.manifest_sha256,
        "other_location": saved.location,
        "other_manifest_sha256": saved.manifest_sha256,
    }
    told = job(both)
    assert (told["whole"]["norm"], told["whole"]["changed"]) == (10, 0)
    with pytest.raises(IntegrityError, match="not the manifest that was committed"):
        job({**both, "other_manifest_sha256": "sha256:" + "0" * 64})


def test_an_agent_that_ends_leaves_a_long_job_to_another_try(saved: Saved, tmp_path: Path) -> None:
    jobs = Jobs(copy_bytes_per_s=1)
    jobs.end()
    target = f"{(tmp_path / 'kept').as_uri()}/r1/g1-step20"
    args = {"source": saved.location, "target": target, "manifest_sha256": saved.manifest_sha256}
    with pytest.raises(UnavailableError):
        jobs.copy(args)
    with pytest.raises(UnavailableError):
        jobs.scrub({"location": saved.location, "bytes_per_s": 1})


def test_a_kind_that_is_not_known_has_no_job() -> None:
    assert Jobs().of("dance") is None
    assert Jobs().of("copy") is not None
