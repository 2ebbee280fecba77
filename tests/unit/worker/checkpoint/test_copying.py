"""Copies of checkpoints: whole or none, verified on their way, and resumed where they were cut."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from trainmaster.checkpoint.stores import open_location, verify_location
from trainmaster.errors import ConflictError, IntegrityError, UnavailableError
from worker.checkpoint.copying import copy_checkpoint
from worker.checkpoint.pace import Pace
from worker.checkpoint.writer import Saved, save
from worker.storage import open_storage


def saved(folder: Path, seed: float = 1.0) -> Saved:
    return save(
        open_storage(folder.as_uri()),
        run="r1",
        generation=1,
        step=20,
        layout={},
        parent=None,
        tensors={"model/w": torch.full((1000,), seed), "model/v": torch.zeros(3)},
        state={"step": 20},
        group=None,
        rank=0,
        world_size=1,
    )


class Broken(Pace):
    """Lets so many blocks pass, and then no more."""

    def __init__(self, blocks: int) -> None:
        super().__init__(0, threading.Event())
        self.blocks = blocks

    def spend(self, num_bytes: int) -> None:
        self.blocks -= 1
        if self.blocks < 0:
            raise UnavailableError("the link is gone")


@pytest.fixture
def one(tmp_path: Path) -> Saved:
    return saved(tmp_path / "fast" / "r1")


@pytest.fixture
def target(tmp_path: Path) -> str:
    return f"{(tmp_path / 'durable').as_uri()}/r1/g1-step20"


def copy(one: Saved, target: str, blocks: int = 100) -> int:
    return copy_checkpoint(
        one.location, target, manifest_sha256=one.manifest_sha256, pace=Broken(blocks)
    ).bytes


def test_a_copy_has_the_same_manifest_and_is_whole(one: Saved, target: str) -> None:
    assert copy(one, target) == one.bytes
    report = verify_location(target, manifest_sha256=one.manifest_sha256)
    assert report.ok
    assert report.files == one.files


def test_a_copy_that_is_cut_anywhere_is_none_and_goes_on(one: Saved, target: str) -> None:
    for blocks in range(one.files):
        with pytest.raises(UnavailableError):
            copy(one, target, blocks=0 if blocks == 0 else 1)
        storage, _ = open_location(target)
        assert not any(path.endswith("manifest.json") for path in storage.list(""))
        assert len(storage.list("")) == blocks
    assert copy(one, target) < one.bytes, "what was there is not sent again"
    assert verify_location(target, manifest_sha256=one.manifest_sha256).ok
    assert copy(one, target) == 0, "asked again, nothing is left to do"


def test_damaged_bytes_are_not_copied(one: Saved, target: str, tmp_path: Path) -> None:
    path = tmp_path / "fast" / "r1" / "g1-step20" / "rank-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    with pytest.raises(IntegrityError) as damage:
        copy(one, target)
    assert damage.value.file == "rank-00000.safetensors"
    storage, folder = open_location(target)
    assert f"{folder}/rank-00000.safetensors" not in storage.list("")


def test_another_checkpoint_in_its_place_is_left_alone(
    one: Saved, target: str, tmp_path: Path
) -> None:
    other = saved(tmp_path / "durable" / "r1", seed=2.0)
    with pytest.raises(ConflictError, match="another checkpoint"):
        copy(one, target)
    assert verify_location(target, manifest_sha256=other.manifest_sha256).ok


class Ends(threading.Event):
    """Notes for how long somebody would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0.0)
        return self.is_set()


def test_a_pace_lets_the_first_pass_and_makes_the_next_wait_its_share() -> None:
    ends = Ends()
    pace = Pace(100, ends, clock=lambda: 50.0)
    for num_bytes in (200, 50, 1):
        pace.spend(num_bytes)
    assert ends.waits == [0.0, 2.0, 2.5]


def test_a_pace_of_zero_never_waits_and_the_end_lets_go() -> None:
    ends = Ends()
    Pace(0, ends).spend(1 << 40)
    assert ends.waits == [0.0]
    ends.set()
    with pytest.raises(UnavailableError) as ended:
        Pace(0, ends).spend(1)
    assert ended.value.code == "agent_ends"
