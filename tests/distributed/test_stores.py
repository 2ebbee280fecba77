"""Stores that fail in the middle, and nodes that do not see the same one: real ranks, real servers,
real file systems.
"""

from pathlib import Path

import pytest

from tests.distributed import storing
from tests.distributed.savers import run_ranks
from tests.services.s3 import Bucket
from trainmaster.checkpoint.manifest import MANIFEST_NAME
from trainmaster.checkpoint.stores import verify_stored
from worker.storage import open_storage

FOLDER = "g1-step20"


def test_x_chec13_a_disk_that_fills_up_and_is_then_read_only_costs_saves_and_nothing_older(
    tmp_path: Path,
) -> None:
    """On a real file system in memory, which is really full and really mounted read-only."""
    (tmp_path / "disk").mkdir()
    folder = str(tmp_path / "disk")
    if run_ranks(tmp_path / "may", storing.may_mount, folder, world_size=1) != [True]:
        pytest.skip("mounting is not allowed here")
    [told] = run_ranks(tmp_path / "ranks", storing.save_on_a_small_disk, folder, world_size=1)
    first, full, room, read_only = told
    assert first["sound"] == ["g1-step10"]
    assert (full["error"], full["sound"]) == ("CheckpointWriteError", ["g1-step10"])
    assert "No space left on device" in full["message"]
    assert room["sound"] == ["g1-step10", "g1-step30"], "the next one is tried, and fits"
    assert (read_only["error"], read_only["sound"]) == ("CheckpointWriteError", room["sound"])
    assert "Read-only file system" in read_only["message"]


@pytest.mark.parametrize("killed_rank", [0, 1])
def test_a_kill_between_any_two_object_operations_on_s3_leaves_a_whole_checkpoint_or_none(
    tmp_path: Path, s3: Bucket, killed_rank: int
) -> None:
    outcomes = []
    for event in range(1, 20):
        root = f"{s3.url}/kill-{event}"
        told = run_ranks(
            tmp_path / f"ranks-{event}",
            storing.save_to_s3_until_killed,
            root,
            s3.environment,
            killed_rank,
            event,
            world_size=2,
        )
        storage = open_storage(root)
        whole = f"{FOLDER}/{MANIFEST_NAME}" in storage.list("")
        assert not whole or verify_stored(storage, FOLDER).ok
        outcomes.append(whole)
        if told[killed_rank] is not None:
            break
    assert len(outcomes) == {0: 8, 1: 3}[killed_rank], "killed at each operation, and let through"
    assert not outcomes[0]
    assert outcomes[-1]


def test_a_kill_in_the_middle_of_an_upload_leaves_no_object(tmp_path: Path, s3: Bucket) -> None:
    told = run_ranks(tmp_path, storing.die_in_an_upload, s3.url, s3.environment, world_size=1)
    assert told == [None]
    assert open_storage(s3.url).list("") == []


def test_several_nodes_prove_that_they_see_one_store_and_leave_nothing_there(
    tmp_path: Path,
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "store")
    (tmp_path / "store").mkdir()
    roots = [f"{(tmp_path / name).as_uri()}/run" for name in ("store", "link", "store")]
    assert run_ranks(tmp_path / "ranks", storing.prove, roots, world_size=3) == [{}, {}, {}]
    assert list((tmp_path / "store" / "run").iterdir()) == []


@pytest.mark.parametrize(
    ("own", "fault", "kind", "words"),
    [
        ("elm", "", "UserError", "node elm does not see"),
        ("", "create", "UnavailableError", "No space left"),
        ("", "twice", "UserError", "created twice"),
    ],
)
def test_a_node_that_sees_another_folder_is_named_on_every_rank(
    tmp_path: Path, own: str, fault: str, kind: str, words: str
) -> None:
    for name in ("store", "elm"):
        (tmp_path / name / "run").mkdir(parents=True)
    roots = [f"{(tmp_path / name).as_uri()}/run" for name in ("store", own or "store")]
    told = run_ranks(tmp_path / "ranks", storing.prove, roots, fault, world_size=2)
    assert [each["error"] for each in told] == [kind] * 2
    assert all(words in each["message"] for each in told)
    assert list((tmp_path / "store" / "run").iterdir()) == []
