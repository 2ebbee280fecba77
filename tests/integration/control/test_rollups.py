"""What remains of the samples of a run that ended long ago, and that it can still be read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select, update

from control.clockwork import Clockwork
from control.db import queries, tables
from control.db.accounts import account_of
from control.db.samples import chunks, rollups, samples
from control.db.samples.ageing import Ages, Stage
from control.db.samples.segments import whole
from control.db.samples.series import Series
from control.db.series import single
from control.db.sql.engine import Database
from control.reconciler import Reconciler
from tests.integration.control.conftest import FakeClock
from tests.integration.control.scene import Scene
from trainmaster.errors import ConflictError

STEPS = 14_000
AGES = Ages.of_days(30, 365)
HERE = ("loss", "applied", "tokens", "step_time_s", "compute_s")


@pytest.fixture
def scene(db: Database, clock: FakeClock) -> Scene:
    made = Scene(db, clock)
    made.sync()
    made.submit()
    made.begin()
    return made


def rows(num_steps: int, rank: int) -> chunks.Rows:
    random = np.random.default_rng(rank)
    steps = np.arange(1, num_steps + 1)
    applied = np.ones(num_steps)
    applied[9::1000] = 0.0
    values = {
        "loss": np.cumsum(random.normal(size=num_steps)),
        "applied": applied,
        "tokens": np.full(num_steps, 4096.0),
        "step_time_s": random.uniform(0.1, 0.2, num_steps),
        "compute_s": random.normal(size=num_steps),
    }
    values["compute_s"][777 + rank] = 99.0 + rank
    values["compute_s"][500] = np.nan
    return chunks.Rows(steps, 1.7e9 + steps * 0.2, values)


def told(scene: Scene, num_steps: int = STEPS) -> None:
    with scene.db.write() as connection:
        for rank in (0, 1):
            samples.append(connection, scene.run, 1, rank, rows(num_steps, rank))


def end(scene: Scene, days_ago: float) -> None:
    at = scene.clock.now() - timedelta(days=days_ago)
    with scene.db.write() as connection:
        connection.execute(update(tables.runs).values(ended_at=at, state="stopped"))
        connection.execute(update(tables.attempts).values(ended_at=at))


def aged(scene: Scene, ages: Ages = AGES) -> Iterator[None]:
    with scene.db.read() as connection:
        found = rollups.due(connection, ages, now=scene.clock.now())
    for old in found:
        yield from rollups.age(scene.db.read, scene.db.write, old, now=scene.clock.now())


def read(scene: Scene, metric: str, **asked: Any) -> Series:
    with scene.db.read() as connection:
        return samples.read(connection, scene.run, metric, whole([1]), **asked)


def summary(scene: Scene) -> dict[str, Any]:
    with scene.db.read() as connection:
        shown = queries.show(connection, scene.run)
        spent = account_of(connection, scene.run, now=scene.clock.now()).goodput
    return {
        "skipped": shown["skipped_steps"],
        "loss": shown["loss"],
        "tokens_per_s": shown["tokens_per_s"],
        "goodput": spent,
    }


def stages(scene: Scene) -> list[int]:
    return [row["stage"] for row in scene.rows(tables.sample_ageing)]


def points(series: Series) -> set[tuple[int, float]]:
    return set(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def test_after_a_while_ranks_keep_their_extremes_and_the_run_all(scene: Scene) -> None:
    told(scene)
    end(scene, days_ago=31)
    exact = {(metric, rank): read(scene, metric, rank=rank) for metric in HERE for rank in (0, 1)}
    over = {kind: read(scene, "compute_s", reduce=kind) for kind in ("mean", "max", "min", "sum")}
    before = summary(scene)
    assert not any(series.rolled_up for series in exact.values())
    assert len(list(aged(scene))) > 4
    assert list(aged(scene)) == []
    assert stages(scene) == [Stage.ROLLED_UP]
    assert summary(scene) == before
    for (metric, rank), series in exact.items():
        now = read(scene, metric, rank=rank)
        same = rank == 0 and metric != "compute_s"
        assert now.rolled_up == (not same)
        if same:
            assert (now.steps.tolist(), now.values.tolist()) == (
                series.steps.tolist(),
                series.values.tolist(),
            )
            continue
        assert 2000 < len(now) <= 10_000
        assert now.steps[[0, -1]].tolist() == [1, STEPS]
        assert np.nanmax(now.values) == np.nanmax(series.values)
        assert np.nanmin(now.values) == np.nanmin(series.values)
        assert np.isnan(now.values).any() == np.isnan(series.values).any()
        assert len(points(now) - points(series)) == np.count_nonzero(np.isnan(now.values))
    for kind, series in over.items():
        now = read(scene, "compute_s", reduce=kind)
        assert now.rolled_up
        assert 5000 < len(now) <= 10_000
        assert len(points(now) - points(series)) == np.count_nonzero(np.isnan(now.values))
        if kind != "sum":
            assert np.nanmax(now.values) == np.nanmax(series.values)
            assert np.nanmin(now.values) == np.nanmin(series.values)
    assert len(read(scene, "tokens_per_s")) > 5000
    with scene.db.read() as connection:
        answer = single.series(connection, scene.run, "compute_s", points=100)
        assert single.series(connection, scene.run, "loss")["rolled_up"] is False
    assert (answer["rolled_up"], answer["downsampled"]) == (True, True)


def test_after_a_long_while_the_run_keeps_its_own_series(scene: Scene) -> None:
    told(scene)
    end(scene, days_ago=31)
    before = summary(scene)
    over = read(scene, "compute_s", reduce="max")
    loss = read(scene, "loss")
    list(aged(scene))
    rolled_up = read(scene, "compute_s", reduce="max")
    scene.clock.pass_s(365 * 86_400)
    list(aged(scene))
    assert stages(scene) == [Stage.REMOVED]
    assert bool(chunks.missing(read(scene, "compute_s", rank=0).values).all())
    assert len(read(scene, "compute_s", rank=1)) == 0
    now = read(scene, "compute_s", reduce="max")
    assert now.values.tobytes() == rolled_up.values.tobytes()
    assert np.nanmax(now.values) == np.nanmax(over.values) == 100.0
    now = read(scene, "loss")
    assert (len(now) <= 10_000, now.rolled_up) == (True, True)
    assert now.values.max() == loss.values.max()
    assert summary(scene) == before
    kinds = [row["kind"] for row in scene.rows(tables.events, actor="control")]
    assert kinds[-2:] == ["rank_samples_rolled_up", "rank_samples_removed"]


def test_a_short_run_stays_exact_until_its_ranks_go(scene: Scene) -> None:
    told(scene, 900)
    end(scene, days_ago=31)
    loss, compute = read(scene, "loss"), read(scene, "compute_s", reduce="mean")
    list(aged(scene))
    assert stages(scene) == [Stage.SHORT]
    assert read(scene, "compute_s", rank=1).rolled_up is False
    assert list(aged(scene)) == []
    scene.clock.pass_s(365 * 86_400)
    list(aged(scene))
    assert stages(scene) == [Stage.REMOVED]
    assert len(read(scene, "compute_s", rank=1)) == 0
    assert (read(scene, "loss").values.tolist(), read(scene, "loss").rolled_up) == (
        loss.values.tolist(),
        False,
    )
    now = read(scene, "compute_s", reduce="mean").values
    assert now.tobytes() == compute.values.tobytes()


def test_a_roll_up_that_is_interrupted_anywhere_ends_the_same(scene: Scene) -> None:
    told(scene, 12_000)
    end(scene, days_ago=31)
    ages = Ages.of_days(1, 0)
    for given_up in itertools.count(1):
        assert len(list(itertools.islice(aged(scene, ages), given_up))) >= 0
        if stages(scene) == [Stage.ROLLED_UP]:
            break
    assert given_up > 3
    now = read(scene, "compute_s", reduce="max")
    assert np.nanmax(now.values) == 100.0
    expected = rows(12_000, 1)
    mine = read(scene, "compute_s", rank=1)
    assert np.nanmax(mine.values) == np.nanmax(expected.values["compute_s"])
    assert len(mine) <= 10_000
    with scene.db.read() as connection:
        b = tables.sample_blocks.c
        left = connection.scalar(select(func.count()).where(b.rank == 1, b.rolled_up.is_(False)))
    assert left == 0


def test_what_lives_is_not_touched_and_what_lives_again_is_left(scene: Scene) -> None:
    told(scene, 12_000)
    assert list(aged(scene)) == []
    end(scene, days_ago=29)
    assert list(aged(scene)) == []
    end(scene, days_ago=31)
    work = aged(scene)
    next(work)
    with scene.db.write() as connection:
        connection.execute(update(tables.runs).values(ended_at=None, state="running"))
    with pytest.raises(ConflictError, match="lives again"):
        list(work)
    assert stages(scene) == []
    assert len(read(scene, "compute_s", rank=1)) == 12_000


def test_what_comes_after_a_roll_up_is_read_beside_it(scene: Scene) -> None:
    told(scene, 12_000)
    end(scene, days_ago=31)
    clockwork = Clockwork(
        scene.db,
        scene.clock,
        Reconciler(scene.db, scene.clock, up_since=scene.clock.now()),
        ages=AGES,
    )
    clockwork.age_samples()
    assert stages(scene) == [Stage.ROLLED_UP]
    late = rows(13_000, 1)
    with scene.db.write() as connection:
        samples.append(connection, scene.run, 1, 1, chunks.between(late, 11_999, 12_600))
    clockwork.tend_samples()
    found = read(scene, "compute_s", rank=1)
    assert found.steps[-600:].tolist() == list(range(12_001, 12_601))
    assert found.rolled_up


def test_ages_of_zero_days_are_for_ever(scene: Scene) -> None:
    end(scene, days_ago=10_000)
    assert list(aged(scene, Ages.of_days(0, 0))) == []
