"""Charts of long runs: what is condensed and kept tells the same as what is stored."""

import math
from typing import Any

import numpy as np
import pytest
from sqlalchemy import update

from control.db import tables
from control.db.samples import chunks, samples
from control.db.series.charts import Charts
from control.db.series.condensed import STRIDE_STEPS
from control.db.series.several import several
from control.db.sql.engine import Database
from tests.integration.control.conftest import FakeClock
from tests.integration.control.scene import Scene

STEPS = 5 * STRIDE_STEPS + 100
RESUMED = 2 * STRIDE_STEPS + 77
SPIKE, BAD = 3 * STRIDE_STEPS + 5, STRIDE_STEPS + 9


@pytest.fixture
def scene(db: Database, clock: FakeClock) -> Scene:
    made = Scene(db, clock)
    made.sync()
    made.submit()
    made.begin()
    return made


def value(step: int) -> float:
    return math.nan if step == BAD else 900.0 if step == SPIKE else 2.0 + math.sin(step / 50)


def tell(scene: Scene, steps: range, *, generation: int = 1, rank: int = 0) -> None:
    values = {"loss": [value(each) for each in steps], "bubble_ratio": [0.1 * rank for _ in steps]}
    made = chunks.rows_of(list(steps), [1.7e9 + each for each in steps], values)
    with scene.db.write() as connection:
        samples.append(connection, scene.run, generation, rank, made)
        connection.execute(
            update(tables.attempts)
            .where(tables.attempts.c.run == scene.run, tables.attempts.c.generation == generation)
            .values(last_step=steps[-1])
        )


def ask(scene: Scene, charts: Charts, points: int = 300, **asked: Any) -> list[dict[str, Any]]:
    with scene.db.read() as connection:
        told: list[dict[str, Any]] = several(
            connection,
            scene.run,
            [("loss", None), ("bubble_ratio", None), ("bubble_ratio", 1)],
            num_points=points,
            with_statistics=True,
            charts=charts,
            **asked,
        )["series"]
    return told


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["total_points"] == other["total_points"]
    assert one["statistics"] == pytest.approx(other["statistics"])
    values = [each["columns"]["value"] for each in (one, other)]
    finite = [[each for each in told if isinstance(each, float)] for told in values]
    assert (min(finite[0]), max(finite[0])) == (min(finite[1]), max(finite[1]))
    assert ["NaN" in told for told in values] == ["NaN" in values[1]] * 2
    for name in ("generation", "step"):
        ends = [(each["columns"][name][0], each["columns"][name][-1]) for each in (one, other)]
        assert ends[0] == ends[1]
    assert len(values[0]) <= 300


WINDOWS: list[dict[str, Any]] = [
    {},
    {"all_generations": True},
    {"all_generations": True, "after_step": 33, "until_step": STEPS - 50},
    {"generation": 1, "after_step": STRIDE_STEPS - 1},
]


@pytest.mark.parametrize("asked", WINDOWS)
def test_a_condensed_window_tells_what_all_of_its_points_do(
    scene: Scene, asked: dict[str, Any]
) -> None:
    for rank in range(2):
        tell(scene, range(1, 4 * STRIDE_STEPS), rank=rank)
    scene.begin(2, parent=1, resumed_from_step=RESUMED)
    for rank in range(2):
        tell(scene, range(RESUMED + 1, STEPS), generation=2, rank=rank)
    charts = Charts()
    # So many points are more than are kept: they are read as they are stored.
    exact = ask(scene, Charts(), 10_000, **asked)
    for told in (ask(scene, charts, **asked), ask(scene, charts, **asked)):
        for condensed, whole in zip(told, exact, strict=True):
            shown = np.asarray(whole["columns"]["step"])
            assert len(shown) > 300
            same(condensed, whole)


def test_a_second_look_reads_only_the_ends_of_its_window(scene: Scene) -> None:
    for rank in range(2):
        for first in range(1, STEPS, STRIDE_STEPS // 2):
            tell(scene, range(first, min(STEPS, first + STRIDE_STEPS // 2)), rank=rank)
    charts = Charts()
    before = ask(scene, charts)
    c = tables.sample_chunks.c
    inner = (c.first_step > STRIDE_STEPS, c.last_step <= 4 * STRIDE_STEPS)
    with scene.db.write() as connection:
        assert connection.execute(update(tables.sample_chunks).where(*inner).values(columns=b""))
    assert ask(scene, charts) == before
    told = ask(scene, charts, after_step=10, until_step=STEPS - 10)
    assert told[0]["statistics"]["max_step"] == SPIKE
    for rank in range(2):
        tell(scene, range(STEPS, STEPS + STRIDE_STEPS), rank=rank)
    grown = ask(scene, charts)
    assert grown[0]["columns"]["step"][-1] == grown[0]["total_points"] == STEPS + STRIDE_STEPS - 1


def test_rows_that_come_late_are_not_hidden_by_what_is_kept(scene: Scene) -> None:
    late = range(100, 200)
    tell(scene, range(1, 100))
    tell(scene, range(200, STEPS))
    tell(scene, range(1, STEPS), rank=1)
    charts = Charts()
    before = ask(scene, charts)
    tell(scene, late)
    tell(scene, range(STEPS, STEPS + 1))
    tell(scene, range(STEPS, STEPS + 1), rank=1)
    after = ask(scene, charts)
    assert after[0]["total_points"] == before[0]["total_points"] + len(late) + 1


def test_one_step_far_beyond_the_others_makes_no_stride_for_each_that_lies_between(
    scene: Scene,
) -> None:
    tell(scene, range(1, 11))
    tell(scene, range(2**53, 2**53 + 1))
    loss, _, _ = ask(scene, Charts())
    assert loss["columns"]["step"] == [*range(1, 11), 2**53]
