"""Checkpoints beside training, on one rank: what waits, what does not, and what is told."""

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from tests.fakes.storage import HauntedStorage
from trainmaster.checkpoint.folder import verify_folder
from trainmaster.storage import Storage
from worker.checkpoint.memory import MemoryTier
from worker.checkpoint.part import Copies
from worker.checkpoint.peers import Peers
from worker.checkpoint.reader import open_checkpoint
from worker.checkpoint.saver import Origin, Saver
from worker.checkpoint.writer import Saved
from worker.storage import open_storage

PEERS = Peers(None, 0, 1)


class Scene:
    """A rank with one tensor, and a store that may be held up or broken."""

    def __init__(self, folder: Path, when_busy: Literal["wait", "skip"], memory: bool) -> None:
        self.folder = folder
        self.memory = folder / "memory"
        self.tensor = torch.zeros(1000)
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.go = threading.Event()
        self.go.set()
        self.reached = threading.Event()
        self.broken = False
        self.after_commit: Callable[[Saved], None] = lambda _: None
        if memory:
            self.memory.mkdir()
        self.copies = Copies(self.memory / "segments-g1" if memory else None, 0)
        self.saver = Saver(
            HauntedStorage(self.store, self._before),
            Origin("r1", 1, {}, None),
            peers=PEERS,
            copies=self.copies,
            memory=MemoryTier(self.memory, PEERS, [""]) if memory else None,
            when_busy=when_busy,
            any_rank=lambda says: says,
            tell=lambda kind, **data: self.events.append((kind, data)),
            committed=lambda saved: self.after_commit(saved),
        )

    def _before(self, operation: str, path: str) -> None:
        if operation == "put":
            self.reached.set()
            self.go.wait(30)
            if self.broken:
                raise OSError(errno.ENOSPC, "no space left on device")

    @property
    def store(self) -> Storage:
        return open_storage((self.folder / "run").as_uri())

    def begin(self, step: int, **options: Any) -> float:
        return self.saver.begin(step, {"model/w": self.tensor}, {"step": step}, **options)

    def told(self, *kinds: str) -> list[dict[str, Any]]:
        return [data for kind, data in self.events if kind in kinds]

    def saved(self, step: int) -> torch.Tensor:
        """What the store holds of a step."""
        [told] = [each for each in self.told("checkpoint_committed") if each["step"] == step]
        found = torch.full((1000,), -1.0)
        opened = open_checkpoint(
            self.store, told["location"], manifest_sha256=told["manifest_sha256"]
        )
        opened.load({"model/w": found})
        return found


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    made: list[Scene] = []

    def make(when_busy: Literal["wait", "skip"] = "wait", *, memory: bool = False) -> Scene:
        made.append(Scene(tmp_path, when_busy, memory))
        return made[-1]

    yield make
    for each in made:
        each.go.set()
        each.saver.close(forget=True)


def test_what_changes_after_the_copy_is_not_saved(scene: Callable[..., Scene]) -> None:
    one = scene()
    one.saver.prepare({"model/w": one.tensor})
    for step in (1, 2, 3):
        one.go.clear()
        one.tensor.fill_(float(step))
        one.begin(step)
        one.tensor.fill_(99.0)
        one.go.set()
        one.saver.finish()
        assert torch.equal(one.saved(step), torch.full((1000,), float(step)))
    committed = one.told("checkpoint_committed")
    assert [each["step"] for each in committed] == [1, 2, 3]
    assert all(0 < each["stall_s"] <= each["write_s"] for each in committed)
    assert committed[0]["copy_bytes"] == one.copies.num_bytes > 4000


def test_the_next_one_waits_for_the_one_before(scene: Callable[..., Scene]) -> None:
    one = scene("wait")
    one.go.clear()
    one.begin(1)
    second = threading.Thread(target=one.begin, args=(2,))
    second.start()
    one.reached.wait(30)
    assert second.is_alive(), "it waits"
    one.go.set()
    second.join(30)
    one.saver.finish()
    assert [each["step"] for each in one.told("checkpoint_committed")] == [1, 2]
    [waited] = one.told("checkpoint_waited")
    assert (waited["step"], waited["behind"]) == (2, 1)


def test_or_is_left_out_unless_somebody_waits_for_it(scene: Callable[..., Scene]) -> None:
    one = scene("skip")
    one.go.clear()
    one.begin(1)
    one.begin(2)
    [skipped] = one.told("checkpoint_skipped")
    assert skipped["step"] == 2
    assert "step 1 was still being written" in skipped["because"]
    ordered = threading.Thread(target=lambda: one.begin(3, may_skip=False))
    ordered.start()
    one.go.set()
    ordered.join(30)
    one.saver.finish()
    one.begin(4)
    one.saver.finish()
    assert [each["step"] for each in one.told("checkpoint_committed")] == [1, 3, 4]


@pytest.mark.parametrize("memory", [False, True])
def test_a_full_disk_costs_a_checkpoint_and_the_next_one_is_tried(
    scene: Callable[..., Scene], memory: bool
) -> None:
    one = scene(memory=memory)
    one.broken = True
    one.begin(1)
    one.saver.finish()
    assert one.saver.last is not None
    assert "no space left" in str(one.saver.last.because)
    [failed] = one.told("checkpoint_failed")
    assert failed["step"] == 1
    assert not (one.folder / "run" / "g1-step1").exists()
    kept = one.told("state_kept")
    assert [(each["step"], each["stored"]) for each in kept] == ([(1, False)] if memory else [])
    one.broken = False
    one.begin(2)
    one.saver.finish()
    assert [each["step"] for each in one.told("checkpoint_committed")] == [2]


def test_a_state_that_is_not_finite_is_neither_stored_nor_kept(
    scene: Callable[..., Scene],
) -> None:
    one = scene(memory=True)
    one.begin(1)
    one.saver.finish()
    one.tensor[7] = torch.nan
    one.begin(2)
    one.saver.finish()
    [failed] = one.told("checkpoint_failed")
    assert "'model/w' holds NaN or infinity" in failed["because"]
    assert [each["step"] for each in one.told("state_kept")] == [1]
    assert (one.memory / "g1-step1" / "manifest.json").exists()


def test_what_is_kept_is_a_checkpoint_like_any_other_and_one_at_a_time(
    scene: Callable[..., Scene],
) -> None:
    one = scene(memory=True)
    for step in (1, 2, 3):
        one.tensor.fill_(float(step))
        one.begin(step, to_store=step != 2)
        one.saver.finish()
        kept = one.memory / f"g1-step{step}"
        report = verify_folder(kept, manifest_sha256=one.told("state_kept")[-1]["manifest_sha256"])
        assert report.ok, report.findings
        assert [path.name for path in one.memory.glob("g1-*")] == [kept.name]
    alone = one.told("state_kept")[1]
    assert (alone["location"], alone["stored"]) == ("memory://r1/g1-step2", False)
    assert [each["step"] for each in one.told("checkpoint_committed")] == [1, 3]
    same = [(one.memory / "g1-step3" / "manifest.json").read_bytes()]
    assert same == [(one.folder / "run" / "g1-step3" / "manifest.json").read_bytes()]


def test_a_copy_under_way_leaves_what_is_kept_alone(scene: Callable[..., Scene]) -> None:
    one = scene(memory=True)
    for step in range(1, 6):
        one.tensor.fill_(float(step))
        one.begin(step)
        one.saver.finish()
        one.go.clear()
        one.tensor.fill_(-1.0)
        one.begin(100 + step)
        assert verify_folder(one.memory / f"g1-step{step}").ok
        one.go.set()
        one.saver.finish()


def test_a_state_that_grows_gets_the_memory_that_it_needs(scene: Callable[..., Scene]) -> None:
    one = scene(memory=True)
    one.saver.prepare({"model/w": one.tensor})
    for size in (1000, 5000, 200, 5000):
        grown = torch.full((size,), float(size))
        one.saver.begin(size + len(one.events), {"model/w": grown}, {"step": 1})
        one.saver.finish()
    assert len(one.told("checkpoint_committed")) == 4
    assert one.told("checkpoint_failed") == []


def test_where_there_is_no_room_in_memory_checkpoints_go_on_without(
    scene: Callable[..., Scene],
) -> None:
    one = scene(memory=True)
    one.begin(1)
    one.saver.finish()
    one.copies.give_up_sharing()
    one.begin(2)
    one.saver.finish()
    one.begin(3)
    one.saver.finish()
    [given_up] = one.told("memory_given_up")
    assert given_up["step"] == 2
    assert [each["step"] for each in one.told("checkpoint_committed")] == [1, 2, 3]
    assert [path for path in one.memory.rglob("*") if path.is_file()] == []


def test_who_ends_in_order_leaves_nothing_in_memory_and_says_so(
    scene: Callable[..., Scene],
) -> None:
    one = scene(memory=True)
    one.begin(1, to_store=False)
    one.saver.close(forget=True)
    assert [each["step"] for each in one.told("state_dropped")] == [1]
    assert [path for path in one.memory.rglob("*") if path.is_file()] == []


def test_what_nobody_planned_for_is_raised_where_training_looks(
    scene: Callable[..., Scene],
) -> None:
    one = scene()

    def bug(saved: object) -> None:
        raise AssertionError("unforeseen")

    one.after_commit = bug
    one.begin(1)
    with pytest.raises(AssertionError, match="unforeseen"):
        one.saver.finish()
