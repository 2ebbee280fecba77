"""Series as they are asked for: what is new since a cursor, windows, both forms, and what others
lost.
"""

from __future__ import annotations

import math
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control.db import queries
from control.db.load import load
from control.db.samples import chunks, samples, sealing
from control.db.samples.sealing import Sizes, Tail
from control.db.samples.segments import surviving, whole
from control.db.series import single
from control.db.series.several import several
from control.db.sql.engine import Database
from tests.fakes import snapshots
from tests.integration.control.api import plane
from tests.integration.control.conftest import FakeClock
from tests.integration.control.scene import Scene, columns
from trainmaster.errors import NotFoundError, UserError
from trainmaster.home import Home
from trainmaster.rule import Rule

SMALL = Sizes(chunk_rows=5, many_chunks=1, block_rows=8, tail_rows=3, least_rows=4)


@pytest.fixture
def scene(db: Database, clock: FakeClock) -> Scene:
    made = Scene(db, clock)
    made.sync()
    made.submit()
    made.begin()
    return made


def tell(
    scene: Scene, steps: range, *, generation: int = 1, rank: int = 0, **values: float | None
) -> None:
    made = chunks.rows_of(
        list(steps),
        [1.7e9 + step for step in steps],
        {name: [value] * len(steps) for name, value in values.items()},
    )
    with scene.db.write() as connection:
        samples.append(connection, scene.run, generation, rank, made)


def ask(scene: Scene, metric: str = "loss", **asked: Any) -> dict[str, Any]:
    with scene.db.read() as connection:
        return single.series(connection, scene.run, metric, **{"points": 10_000, **asked})


class Reader:
    """A client that keeps what it has seen."""

    def __init__(self, scene: Scene, metric: str, **asked: Any) -> None:
        self.scene, self.metric, self.asked = scene, metric, asked
        self.cursor = ""
        self.points: list[Any] = []
        self.resets = 0

    def read_on(self) -> int:
        """Return how many points came."""
        answer = ask(self.scene, self.metric, after=self.cursor, **self.asked)
        if answer["reset"]:
            self.points = []
            self.resets += 1
        self.points += answer["points"]
        self.cursor = answer["cursor"]
        return len(answer["points"])


def test_a_cursor_goes_on_with_what_is_new(scene: Scene) -> None:
    reader = Reader(scene, "loss")
    assert reader.read_on() == 0
    tell(scene, range(1, 11), loss=1.0)
    assert reader.read_on() == 10
    assert reader.read_on() == 0
    tell(scene, range(11, 13), loss=2.0)
    assert reader.read_on() == 2
    assert (reader.points, reader.resets) == (ask(scene)["points"], 0)
    assert "cursor" not in ask(scene)


def test_after_a_rollback_a_cursor_is_reset(scene: Scene) -> None:
    tell(scene, range(1, 11), loss=1.0)
    reader = Reader(scene, "loss")
    reader.read_on()
    scene.begin(2, parent=1, resumed_from_step=6)
    assert (reader.read_on(), reader.resets) == (6, 1)
    tell(scene, range(7, 9), generation=2, loss=2.0)
    assert (reader.read_on(), reader.resets) == (2, 1)
    assert reader.points == ask(scene)["points"]


def test_what_a_silent_rank_tells_late_resets_a_cursor(scene: Scene) -> None:
    reader = Reader(scene, "compute_s")
    tell(scene, range(1, 11), rank=0, compute_s=1.0)
    assert reader.read_on() == 10
    tell(scene, range(1, 6), rank=1, compute_s=3.0)
    assert (reader.read_on(), reader.resets) == (5, 1)
    assert {point[2] for point in reader.points} == {2.0}


def test_a_cursor_that_is_none_or_of_another_series_gives_no_wrong_points(scene: Scene) -> None:
    tell(scene, range(1, 11), loss=1.0, lr=2.0)
    for nonsense in ("x", "a.1", "a.-1.2", "a.1.2.3", "a.1e3.4", "a.٣.4"):
        with pytest.raises(UserError, match="no cursor"):
            ask(scene, after=nonsense)
    other = ask(scene, "lr", after="")["cursor"]
    answer = ask(scene, "loss", after=other)
    assert (answer["reset"], len(answer["points"])) == (True, 10)
    assert ask(scene, after=f"a.{10**40}.1")["reset"] is True


events = st.one_of(
    st.tuples(st.just("tell"), st.integers(0, 1), st.integers(1, 5)),
    st.tuples(st.just("late"), st.integers(0, 1), st.integers(1, 12)),
    st.tuples(st.just("tend"), st.integers(0, 1), st.booleans()),
    st.tuples(st.just("rollback"), st.integers(0, 12), st.just(0)),
    st.tuples(st.just("read"), st.just(0), st.just(0)),
)


def test_whatever_happens_a_reader_that_goes_on_sees_what_one_that_begins_sees(
    scene: Scene,
) -> None:
    slot = count(2)

    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(events, max_size=14))
    def check(happened: list[tuple[str, int, int]]) -> None:
        scene.submit()
        scene.begin(slots=[next(slot)])
        readers = [
            Reader(scene, "compute_s"),
            Reader(scene, "loss"),
            Reader(scene, "compute_s", rank=1),
            Reader(scene, "compute_s", all_generations=True),
            Reader(scene, "compute_s", until_step=5),
        ]
        generation, reached = 1, {0: 0, 1: 0}
        for value, (kind, which, number) in enumerate(happened):
            if kind == "tell":
                steps = range(reached[which] + 1, reached[which] + 1 + number)
                reached[which] = steps[-1]
                tell(scene, steps, generation=generation, rank=which, compute_s=value, loss=value)
            elif kind == "late":
                tell(scene, range(number, number + 2), rank=which, compute_s=value, loss=value)
            elif kind == "tend":
                tail = Tail(scene.run, generation, which)
                with scene.db.write() as connection:
                    sealing.tend(connection, tail, seals=bool(number), sizes=SMALL)
            elif kind == "rollback":
                scene.begin(
                    generation + 1,
                    parent=generation,
                    resumed_from_step=which,
                    slots=[next(slot)],
                )
                generation, reached = generation + 1, {0: which, 1: which}
            else:
                for reader in readers:
                    reader.read_on()
        for reader in readers:
            reader.read_on()
            assert reader.points == ask(scene, reader.metric, **reader.asked)["points"]

    check()


def test_columns_hold_what_points_hold(scene: Scene) -> None:
    told = [1.5, None, math.nan, math.inf, -math.inf]
    scene.sync(scene.batch(0, 9, samples=columns([1, 2, 3, 4, 5], loss=told)))
    points, as_columns = ask(scene)["points"], ask(scene, as_columns=True)["columns"]
    assert as_columns["value"] == [1.5, None, "NaN", "Infinity", "-Infinity"]
    assert [list(point[:3]) for point in points] == [
        [generation, step, value]
        for generation, step, value in zip(
            as_columns["generation"], as_columns["step"], as_columns["value"], strict=True
        )
    ]
    assert as_columns["at"][0] == 1.7e9 + 1
    assert points[0][3] == "2023-11-14T22:13:21.000000Z"


def test_an_infinity_that_was_told_fires_a_rule_and_is_read_as_one(scene: Scene) -> None:
    scene.sync(scene.batch(0, 9, samples=columns([1, 2, 3], loss=[1.0, math.inf, -math.inf])))
    with scene.db.read() as connection:
        loaded = load(connection, scene.run, now=scene.clock.now(), control_up_since=None)
    assert loaded is not None
    window = loaded.snapshot.windows["loss"]
    assert [each.value for each in window] == [1.0, math.inf, -math.inf]
    above = Rule.model_validate(
        {
            "name": "r",
            "metric": "loss",
            "when": {"condition": "above", "value": 100},
            "for": {"steps": 1},
        }
    )
    judged = snapshots.evaluate(above, window[:2])
    assert (judged.state, judged.first_bad_step) == ("firing", 2)
    assert [point[2] for point in ask(scene)["points"]] == [1.0, "Infinity", "-Infinity"]


def test_150_metrics_in_a_batch_that_comes_twice_are_there_once(scene: Scene) -> None:
    names = [f"metric_{number}" for number in range(150)]
    batch = scene.batch(0, 9, samples=columns([1], **{name: [0.5] for name in names}))
    for _ in range(2):
        scene.sync(batch)
    with scene.db.read() as connection:
        found = samples.read_many(connection, scene.run, names, whole([1]), rank=0)
    assert {name: series.values.tolist() for name, series in found.items()} == {
        name: [0.5] for name in names
    }


def test_steps_that_are_done_again_are_stored_beside_those_they_supersede(scene: Scene) -> None:
    tell(scene, range(1, 151), loss=1.0, val_loss=9.0)
    scene.begin(2, parent=1, resumed_from_step=100)
    tell(scene, range(101, 161), generation=2, loss=2.0)
    points = [tuple(point[:3]) for point in ask(scene)["points"]]
    assert points == [(1, step, 1.0) for step in range(1, 101)] + [
        (2, step, 2.0) for step in range(101, 161)
    ]
    assert len(ask(scene, all_generations=True)["points"]) == 150 + 60
    # A metric that the new attempt does not tell is superseded from there on as well.
    with scene.db.read() as connection:
        segments = surviving(queries.attempts_of(connection, scene.run))
        found = samples.read(connection, scene.run, "val_loss", segments, rank=0)
    told = ~chunks.missing(found.values)
    assert found.steps[told].tolist() == list(range(1, 101))


def test_several_series_are_read_at_once_as_each_is_by_itself(scene: Scene) -> None:
    for rank in range(2):
        tell(scene, range(1, 9), rank=rank, loss=2.0, bubble_ratio=0.1 * (rank + 1))
    wanted: list[tuple[str, int | None]] = [
        *(("loss", None), ("bubble_ratio", None), ("bubble_ratio", 1), ("bubble_ratio", 0)),
        ("tokens_per_s", None),
    ]
    for asked in ({}, {"after_step": 3, "until_step": 6}, {"generation": 1}):
        with scene.db.read() as connection:
            told = several(connection, scene.run, wanted, **asked)
        alone = [ask(scene, metric, rank=rank, as_columns=True, **asked) for metric, rank in wanted]
        assert [each["columns"] for each in told["series"]] == [each["columns"] for each in alone]
        assert [each["metric"] for each in told["series"]] == [metric for metric, _ in wanted]
    assert told["series"][2]["columns"]["value"] == [0.2] * 8


def test_a_rank_that_no_attempt_has_had_is_refused_and_hides_no_other_series(scene: Scene) -> None:
    tell(scene, range(1, 9), loss=2.0)
    with pytest.raises(NotFoundError, match="has had no rank 99: ranks 0 to 1"):
        ask(scene, "loss", rank=99)
    with scene.db.read() as connection:
        told = several(connection, scene.run, [("loss", 99), ("loss", 0)])
    assert [each["total_points"] for each in told["series"]] == [0, 8]


def test_several_series_are_thinned_one_by_one(scene: Scene) -> None:
    tell(scene, range(1, 101), loss=2.0)
    tell(scene, range(1, 4), rank=1, bubble_ratio=0.1)
    with scene.db.read() as connection:
        told = several(connection, scene.run, [("loss", 0), ("bubble_ratio", 1)], num_points=10)
    assert [each["downsampled"] for each in told["series"]] == [True, False]
    with scene.db.read() as connection, pytest.raises(UserError):
        several(connection, scene.run, [("loss", 0), ("colour", None)])


def test_figures_of_a_stretch_are_of_all_its_points_however_few_are_shown(scene: Scene) -> None:
    for step in range(1, 101):
        tell(scene, range(step, step + 1), loss=float(step) if step != 40 else math.nan)
    scene.begin(2, parent=1, resumed_from_step=60)
    tell(scene, range(61, 81), generation=2, loss=500.0)
    with scene.db.read() as connection:
        told = several(
            connection,
            scene.run,
            [("loss", None)],
            all_generations=True,
            after_step=10,
            until_step=62,
            num_points=4,
            with_statistics=True,
        )["series"][0]
    kept = [*(step for step in range(11, 61) if step != 40), 500, 500]
    mean = sum(kept) / len(kept)
    assert told["downsampled"] is True
    assert told["statistics"] == {
        "count": len(kept),
        "non_finite": 1,
        "mean": pytest.approx(mean),
        "std": pytest.approx((sum((each - mean) ** 2 for each in kept) / len(kept)) ** 0.5),
        "min": 11.0,
        "min_step": 11,
        "max": 500.0,
        "max_step": 61,
        "first": 11.0,
        "last": 500.0,
    }


def test_figures_of_a_stretch_in_which_nothing_was_measured_are_absent(scene: Scene) -> None:
    tell(scene, range(1, 5), loss=2.0, lr=None)
    with scene.db.read() as connection:
        told = several(connection, scene.run, [("lr", None)], with_statistics=True)["series"][0]
    assert (told["statistics"]["count"], told["statistics"]["mean"]) == (0, None)


def test_what_was_taken_in_is_counted_along_the_lineage_of_each_generation(scene: Scene) -> None:
    tell(scene, range(1, 11), loss=1.0, tokens=100.0)
    scene.begin(2, parent=1, resumed_from_step=4)
    tell(scene, range(5, 8), generation=2, loss=1.0, tokens=10.0)
    with scene.db.read() as connection:
        told = several(
            connection, scene.run, [("loss", 0)], all_generations=True, with_tokens=True
        )["series"][0]["columns"]
    assert told["tokens"] == [100.0 * step for step in range(1, 11)] + [410.0, 420.0, 430.0]


def test_a_viewer_reads_several_series_in_one_request(
    scene: Scene, db: Database, clock: FakeClock, tmp_path: Path
) -> None:
    tell(scene, range(1, 5), loss=2.0)
    with plane(db, Home(tmp_path / "home"), clock) as here:
        viewer = here.people["viewer"]
        path = f"/v1/runs/{scene.run}/series"
        told = viewer.post(path, {"series": [{"metric": "loss"}, {"metric": "lr", "rank": 0}]})
        assert [each["columns"]["step"] for each in told["series"]] == [[1, 2, 3, 4]] * 2
        assert told["series"][1]["columns"]["value"] == [None] * 4
        viewer.post(path, {"series": []}, expect=422)
        viewer.post(path, {"series": [{"metric": "colour"}]}, expect=400)
        viewer.post("/v1/runs/none/series", {"series": [{"metric": "loss"}]}, expect=404)
