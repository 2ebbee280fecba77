"""Samples: lineage, reduction over ranks, windows, compaction, fewer points; bit for bit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.db import queries, tables
from control.db.load import load
from control.db.samples import chunks, samples, sealing
from control.db.samples.segments import surviving, whole
from control.db.series import single
from control.db.sql.engine import Database
from tests.integration.control.conftest import FakeClock
from tests.integration.control.scene import Scene, columns


@pytest.fixture
def scene(db: Database, clock: FakeClock) -> Scene:
    made = Scene(db, clock)
    made.sync()
    made.submit()
    made.begin()
    return made


def tell(
    scene: Scene, steps: range, *, generation: int = 1, rank: int = 0, **values: float
) -> None:
    """Store `steps` with the same values at each, after what is stored."""
    at = scene.sync(scene.batch(0, 0, generation=generation, rank=rank)).cursors
    [offset] = at.values()
    told = {name: [value] * len(steps) for name, value in values.items()}
    batch = scene.batch(
        offset, offset + 1, generation=generation, rank=rank, samples=columns(steps, **told)
    )
    scene.sync(batch)


def points(scene: Scene, metric: str = "loss", **asked: object) -> list[list[object]]:
    with scene.db.read() as connection:
        found = single.series(connection, scene.run, metric, points=10_000, **asked)  # type: ignore[arg-type]
    return [list(point[:3]) for point in found["points"]]


def test_after_a_rollback_each_step_is_there_once_from_the_generation_that_survives(
    scene: Scene,
) -> None:
    tell(scene, range(1, 11), loss=1.0)
    scene.begin(2, parent=1, resumed_from_step=6)
    tell(scene, range(7, 10), generation=2, loss=2.0)
    expected = [[1, step, 1.0] for step in range(1, 7)] + [[2, step, 2.0] for step in range(7, 10)]
    assert points(scene) == expected
    assert len(points(scene, all_generations=True)) == 13
    assert points(scene, generation=1)[-1] == [1, 10, 1.0]
    with scene.db.read() as connection:
        assert queries.show(connection, scene.run)["step"] == 9


def test_a_rollback_behind_a_rollback_cuts_both(scene: Scene) -> None:
    tell(scene, range(1, 11), loss=1.0)
    scene.begin(2, parent=1, resumed_from_step=6)
    tell(scene, range(7, 10), generation=2, loss=2.0)
    scene.begin(3, parent=2, resumed_from_step=4)
    tell(scene, range(5, 7), generation=3, loss=3.0)
    assert [point[:2] for point in points(scene)] == [
        [1, 1],
        [1, 2],
        [1, 3],
        [1, 4],
        [3, 5],
        [3, 6],
    ]


def test_after_a_restore_before_any_step_the_run_stands_at_the_checkpoint(scene: Scene) -> None:
    tell(scene, range(1, 11), loss=1.0)
    scene.begin(2, parent=1, resumed_from_step=6)
    with scene.db.read() as connection:
        shown = queries.show(connection, scene.run)
    assert (shown["step"], shown["loss"]) == (6, 1.0)


def test_skipped_steps_are_counted_on_the_lineage_alone(scene: Scene) -> None:
    tell(scene, range(1, 4), applied=1.0)
    tell(scene, range(4, 9), applied=0.0)
    scene.begin(2, parent=1, resumed_from_step=5)
    tell(scene, range(6, 8), generation=2, applied=0.0)
    with scene.db.read() as connection:
        attempts = queries.attempts_of(connection, scene.run)
        assert samples.num_skipped(connection, scene.run, surviving(attempts)) == 4
        assert samples.num_skipped(connection, scene.run, whole([1])) == 5


def test_ranks_become_one_value_as_asked_and_wait_for_the_slowest_teller(scene: Scene) -> None:
    tell(scene, range(1, 5), rank=0, compute_s=1.0, step_time_s=1.0)
    tell(scene, range(1, 4), rank=1, compute_s=3.0, step_time_s=2.0)
    assert points(scene, "compute_s") == [[1, step, 2.0] for step in (1, 2, 3)]
    assert points(scene, "compute_s", rank=1)[0] == [1, 1, 3.0]
    assert points(scene, "step_time_s", reduce="max")[0] == [1, 1, 2.0]
    with scene.db.read() as connection:
        loaded = load(connection, scene.run, now=scene.clock.now(), control_up_since=None)
    assert loaded is not None
    window = loaded.snapshot.windows["step_time_s"]
    assert [(each.step, each.value) for each in window] == [(1, 2.0), (2, 2.0), (3, 2.0)]


def test_rules_do_not_wait_for_a_rank_that_is_silent_for_a_whole_window(scene: Scene) -> None:
    tell(scene, range(1, 11), rank=1, step_time_s=3.0)
    for told, newest in ((range(1, 501), (10, 3.0)), (range(501, 701), (700, 1.0))):
        tell(scene, told, rank=0, step_time_s=1.0)
        with scene.db.read() as connection:
            loaded = load(connection, scene.run, now=scene.clock.now(), control_up_since=None)
        assert loaded is not None
        last = loaded.snapshot.windows["step_time_s"][-1]
        assert (last.step, last.value) == newest
        assert points(scene, "step_time_s")[-1] == [1, 10, 2.0]


def test_a_measured_nan_is_not_averaged_away_and_a_missing_value_is(scene: Scene) -> None:
    scene.sync(
        scene.batch(0, 9, samples=columns([1, 2, 3], compute_s=[math.nan, None, None])),
        scene.batch(0, 9, rank=1, samples=columns([1, 2, 3], compute_s=[1.0, 1.0, None])),
    )
    assert points(scene, "compute_s") == [[1, 1, "NaN"], [1, 2, 1.0], [1, 3, None]]


def test_tokens_per_s_follows_from_tokens_and_the_slowest_rank(scene: Scene) -> None:
    tell(scene, range(1, 3), rank=0, tokens=100.0, step_time_s=1.0)
    tell(scene, range(1, 3), rank=1, tokens=100.0, step_time_s=4.0)
    assert points(scene, "tokens_per_s") == [[1, 1, 25.0], [1, 2, 25.0]]
    assert points(scene, "tokens_per_s", rank=0) == [[1, 1, 100.0], [1, 2, 100.0]]


def test_compaction_changes_nothing_that_is_read(scene: Scene) -> None:
    told = [math.nan, math.inf, None, 0.1, -0.0]
    for step in range(1, 41):
        value = told[step % 5]
        batch = scene.batch(step, step + 1, samples=columns([step], loss=[value], applied=[0.0]))
        if step == 1:
            scene.sync(scene.batch(0, 1, samples=columns([1], loss=[value], applied=[0.0])))
        else:
            scene.sync(scene.batch(step - 1, step, samples=batch.samples))
    before = points(scene)
    assert len(before) == 40
    with scene.db.write() as connection:
        [tail] = sealing.due(connection, seals=True)
        assert sealing.tend(connection, tail, seals=True) == sealing.Done(39, 0)
    assert len(scene.rows(tables.sample_chunks)) == 1
    assert points(scene) == before
    with scene.db.read() as connection:
        assert samples.num_skipped(connection, scene.run, whole([1])) == 40


def test_a_window_holds_the_newest_steps_over_generations(scene: Scene) -> None:
    tell(scene, range(1, 701), loss=1.0)
    scene.begin(2, parent=1, resumed_from_step=600)
    tell(scene, range(601, 611), generation=2, loss=2.0)
    with scene.db.read() as connection:
        loaded = load(connection, scene.run, now=scene.clock.now(), control_up_since=None)
    assert loaded is not None
    window = loaded.snapshot.windows["loss"]
    assert [window[0].step, window[-1].step, len(window)] == [99, 610, 512]
    assert {each.generation for each in window if each.step > 600} == {2}


def test_charts_ask_for_what_is_new(scene: Scene) -> None:
    tell(scene, range(1, 11), loss=1.0)
    assert [point[1] for point in points(scene, after_step=8)] == [9, 10]
    assert [point[1] for point in points(scene, until_step=2)] == [1, 2]


def test_fewer_points_keep_extremes_and_what_is_not_finite(scene: Scene) -> None:
    values: list[float | None] = [math.sin(step / 50) for step in range(5000)]
    values[1234], values[2345], values[3456] = 99.0, -99.0, math.nan
    steps = list(range(1, 5001))
    scene.sync(scene.batch(0, 9, samples=columns(steps, loss=values)))
    with scene.db.read() as connection:
        found = single.series(connection, scene.run, "loss", points=200)
        exact = single.series(connection, scene.run, "loss", points=5000)
    assert (exact["total_points"], exact["downsampled"]) == (5000, False)
    assert len(exact["points"]) == 5000
    assert (found["total_points"], found["downsampled"]) == (5000, True)
    assert len(found["points"]) <= 200
    kept = {point[1]: point[2] for point in found["points"]}
    assert (kept[1235], kept[2346], kept[3457]) == (99.0, -99.0, "NaN")
    assert {1, 5000} <= kept.keys()
    assert list(kept) == sorted(kept)


numbers = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.none())


@settings(max_examples=50, deadline=None)
@given(st.lists(numbers, max_size=40))
def test_a_chunk_gives_back_every_bit(values: list[float | None]) -> None:
    steps = list(range(3, 3 + len(values)))
    rows = chunks.rows_of(steps, [float(step) for step in steps], {"loss": values})
    back = chunks.decode(chunks.encode(rows), ["loss", "lr"])
    assert back.steps.tolist() == steps
    assert chunks.missing(back.values["loss"]).tolist() == [value is None for value in values]
    assert bool(chunks.missing(back.values["lr"]).all())
    stored = back.values["loss"].view(np.uint64).tolist()
    assert stored == rows.values["loss"].view(np.uint64).tolist()
    for value, seen in zip(values, back.values["loss"].tolist(), strict=True):
        if value is not None:
            assert seen == value or (math.isnan(seen) and math.isnan(value))
