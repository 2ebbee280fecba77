"""What is kept of windows from turn to turn is what would be read anew."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from control.db.load import Memory, load
from control.db.samples.windows import Window
from control.db.sql.engine import Database
from control.snapshot import WINDOW_STEPS
from tests.integration.control.conftest import FakeClock
from tests.integration.control.scene import Scene, columns, same


@pytest.fixture
def scene(db: Database, clock: FakeClock) -> Scene:
    made = Scene(db, clock)
    made.sync()
    made.submit()
    made.begin()
    return made


def windows(scene: Scene, memory: Memory | None) -> dict[str, Window]:
    with scene.db.read() as connection:
        loaded = load(
            connection, scene.run, now=scene.clock.now(), control_up_since=None, memory=memory
        )
    assert loaded is not None
    return dict(loaded.snapshot.windows)


def agree(scene: Scene, memory: Memory) -> dict[str, Window]:
    kept, anew = windows(scene, memory), windows(scene, None)
    assert kept.keys() == anew.keys()
    for metric, window in kept.items():
        assert [(each.generation, each.step, each.at) for each in window] == [
            (each.generation, each.step, each.at) for each in anew[metric]
        ]
        assert all(same(a.value, b.value) for a, b in zip(window, anew[metric], strict=True))
    return kept


def tell(scene: Scene, rank: int, steps: Sequence[int], generation: int = 1) -> None:
    at = scene.sync(scene.batch(0, 0, generation=generation, rank=rank)).cursors
    (offset,) = at.values()
    loss = [float("nan") if step % 7 == 0 else random.random() for step in steps]
    told = columns(steps, loss=loss, step_time_s=[random.random() for _ in steps])
    scene.sync(scene.batch(offset, offset + 1, generation=generation, rank=rank, samples=told))


def test_ranks_that_tell_at_their_own_pace(scene: Scene) -> None:
    memory = Memory()
    reached = [0, 0]
    rng = random.Random(7)
    for _ in range(25):
        rank, count = rng.randrange(2), rng.randrange(1, 120)
        tell(scene, rank, range(reached[rank] + 1, reached[rank] + 1 + count))
        reached[rank] += count
        kept = agree(scene, memory)
    assert max(reached) > WINDOW_STEPS
    assert len(kept["loss"]) <= WINDOW_STEPS


def test_a_lineage_that_goes_back(scene: Scene) -> None:
    memory = Memory()
    for rank in (0, 1):
        tell(scene, rank, range(1, 41))
    assert agree(scene, memory)["loss"][-1].step == 40
    scene.begin(2, parent=1, resumed_from_step=20)
    assert agree(scene, memory)["loss"][-1].step == 20
    for rank in (0, 1):
        tell(scene, rank, range(21, 31), generation=2)
        kept = agree(scene, memory)
    assert [(each.generation, each.step) for each in kept["loss"][-2:]] == [(2, 29), (2, 30)]


def test_what_a_rank_tells_after_its_attempt_has_ended(scene: Scene) -> None:
    from control.decision import AttemptEnd

    memory = Memory()
    tell(scene, 0, range(1, 11))
    scene.decide(state="failed", attempt_end=AttemptEnd(1, "failed", "for the test"))
    agree(scene, memory)
    tell(scene, 1, range(1, 9))
    agree(scene, memory)
    tell(scene, 1, range(9, 11))
    assert len(agree(scene, memory)["step_time_s"]) == 10
