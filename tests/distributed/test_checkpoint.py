"""Several ranks save together over Gloo: any layout, and every way in which one may fail."""

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from tests.distributed import savers
from tests.distributed.savers import run_ranks, share_of, whole_state
from trainmaster.checkpoint.folder import verify_folder
from trainmaster.checkpoint.manifest import MANIFEST_NAME
from worker.checkpoint.reader import open_checkpoint
from worker.checkpoint.tensors import Shard
from worker.storage import open_storage

FOLDER = "g1-step20"


def save_layout(tmp_path: Path, layout: int, world_size: int, **changes: Any) -> dict[str, Any]:
    root = (tmp_path / "run").as_uri()
    told = run_ranks(
        tmp_path / "ranks", savers.save_layout, root, layout, world_size=world_size, **changes
    )
    assert all(one == told[0] for one in told), "every rank tells the same"
    return told[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_what_some_ranks_saved_is_restored_in_any_other_layout(
    tmp_path: Path, world_size: int
) -> None:
    told = save_layout(tmp_path, world_size, world_size)
    assert verify_folder(tmp_path / "run" / FOLDER, manifest_sha256=told["manifest_sha256"]).ok
    storage = open_storage((tmp_path / "run").as_uri())
    opened = open_checkpoint(storage, told["location"], manifest_sha256=told["manifest_sha256"])
    state = whole_state()
    for other_size in (1, 2, 3, 4, 5):
        for layout in (11, 12, 13):
            for rank in range(other_size):
                right = share_of(state, layout, rank, other_size)
                restored = {
                    name: Shard(torch.zeros_like(s.tensor), s.global_offset, s.global_shape)
                    for name, s in right.items()
                }
                opened.load(restored)
                for name, shard in right.items():
                    assert torch.equal(restored[name].tensor, shard.tensor), (name, layout, rank)


def test_each_rank_that_owns_something_has_one_file_that_anyone_can_read(tmp_path: Path) -> None:
    told = save_layout(tmp_path, 3, 3)
    files = sorted((tmp_path / "run" / FOLDER).glob("*.safetensors"))
    assert [file.name for file in files] == [f"rank-{rank:05d}.safetensors" for rank in range(3)]
    assert told["files"] == 4
    for rank, file in enumerate(files):
        read = safetensors.torch.load_file(file)
        share = share_of(whole_state(), 3, rank, 3)
        assert read.keys() == share.keys()
        assert all(torch.equal(read[name], shard.tensor) for name, shard in share.items())


def test_a_rank_that_owns_nothing_has_no_file(tmp_path: Path) -> None:
    told = run_ranks(
        tmp_path / "ranks", savers.save_by_one, (tmp_path / "run").as_uri(), 1, world_size=3
    )
    assert told[0] == told[1] == told[2]
    names = sorted(path.name for path in (tmp_path / "run" / FOLDER).iterdir())
    assert names == [MANIFEST_NAME, "rank-00001.safetensors", "state.json"]


@pytest.mark.parametrize("full_rank", [0, 1, 2])
def test_one_full_disk_fails_the_save_on_every_rank_and_commits_nothing(
    tmp_path: Path, full_rank: int
) -> None:
    root = (tmp_path / "run").as_uri()
    told = run_ranks(tmp_path / "ranks", savers.save_on_a_full_disk, root, full_rank, world_size=3)
    assert {one["error"] for one in told} == {"CheckpointWriteError"}
    assert all(
        f"rank {full_rank}: OSError: [Errno 27] File too large" in o["message"] for o in told
    )
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.parametrize("sick_rank", [0, 1])
def test_a_nan_on_one_rank_is_refused_by_all_before_a_byte_is_written(
    tmp_path: Path, sick_rank: int
) -> None:
    root = (tmp_path / "run").as_uri()
    told = run_ranks(tmp_path / "ranks", savers.save_not_finite, root, sick_rank, world_size=2)
    assert {one["error"] for one in told} == {"NonFiniteStateError"}
    assert all(f"rank {sick_rank}: 'model/layers.{sick_rank}.w'" in one["message"] for one in told)
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_that_is_there_is_refused_on_every_rank(tmp_path: Path) -> None:
    first = save_layout(tmp_path, 1, 2)
    root = (tmp_path / "run").as_uri()
    told = run_ranks(tmp_path / "again", savers.save_layout, root, 2, world_size=2)
    assert {one["error"] for one in told} == {"ConflictError"}
    report = verify_folder(tmp_path / "run" / FOLDER, manifest_sha256=first["manifest_sha256"])
    assert report.ok


def test_a_bug_on_one_rank_is_raised_there_and_told_to_the_others(tmp_path: Path) -> None:
    root = (tmp_path / "run").as_uri()
    told = run_ranks(tmp_path / "ranks", savers.save_with_a_bug, root, 1, world_size=3)
    assert [one["error"] for one in told] == ["RuntimeError", "AssertionError", "RuntimeError"]
    assert "rank 1: AssertionError: unforeseen" in told[0]["message"]
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.parametrize("killed_rank", [0, 1])
def test_a_kill_between_any_two_file_operations_leaves_a_whole_checkpoint_or_none(
    tmp_path: Path, killed_rank: int
) -> None:
    outcomes, kept = [], []
    for event in range(1, 90):
        folder = tmp_path / f"kill-{event}"
        root, memory = (folder / "run").as_uri(), folder / "memory"
        told = run_ranks(
            folder / "ranks",
            savers.save_until_killed,
            root,
            str(memory),
            killed_rank,
            event,
            world_size=2,
        )
        outcomes.append(is_whole_or_none(folder / "run" / FOLDER))
        kept += [is_whole_or_none(node / FOLDER) for node in sorted(memory.iterdir())]
        if told[killed_rank] is not None:
            assert told[killed_rank]["because"] is None
            break
        other = told[1 - killed_rank]
        assert other is None or "error" in other or outcomes[-1]
    else:
        pytest.fail("the save never got through")
    assert len(outcomes) > 10, "the save was killed at many points"
    # How many operations a save takes differs by a few: whoever comes first makes the folders.
    assert not outcomes[0], "killed before its first operation, it commits nothing"
    assert outcomes[-1], "let through, it commits"
    assert kept[-2:] == [True, True], "and both nodes keep all of it"
    assert False in kept, "which they do not before it is whole"


def is_whole_or_none(folder: Path) -> bool:
    """Whether there is a whole checkpoint; that there is half of one is an assertion error."""
    if not (folder / MANIFEST_NAME).exists():
        return False
    report = verify_folder(folder)
    assert report.ok, report.findings
    return True
