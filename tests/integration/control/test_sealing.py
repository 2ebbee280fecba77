"""Samples rewritten while they grow: whatever is joined and sealed, and whatever comes twice, late
or in another order, the same rows are read.
"""

from __future__ import annotations

import math
import threading
import zlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select, text, update

from control.clockwork import Clockwork
from control.db import tables
from control.db.samples import blocks, chunks, samples, sealing
from control.db.samples.sealing import Sizes, Tail
from control.db.samples.segments import Segment, whole
from control.db.series import single
from control.db.sql import schema
from control.db.sql.engine import Database
from control.db.sql.faults import UnreadableError
from control.reconciler import Reconciler
from tests.integration.control.conftest import FakeClock
from tests.integration.control.scene import Scene
from trainmaster.errors import ConflictError

SMALL = Sizes(chunk_rows=5, many_chunks=1, block_rows=8, tail_rows=3, least_rows=4)

METRICS = ("loss", "applied", "compute_s")
numbers = st.one_of(st.none(), st.floats(width=16), st.just(0.0))
rows = st.dictionaries(st.integers(1, 40), st.lists(numbers, min_size=3, max_size=3), min_size=1)
tells = st.tuples(rows, st.lists(st.sampled_from(METRICS), unique=True), st.booleans())
acts = st.lists(tells | st.sampled_from(["join", "seal"]), max_size=12)


@pytest.fixture
def scene(db: Database, clock: FakeClock) -> Scene:
    """Generation 1 has ended, generation 2 lives."""
    made = Scene(db, clock)
    made.sync()
    made.submit()
    made.begin()
    made.begin(2, parent=1)
    return made


def bits(values: Sequence[float] | np.ndarray) -> list[int]:
    return np.asarray(values, dtype=np.float64).view(np.uint64).tolist()


def test_any_order_of_telling_joining_and_sealing_reads_as_the_rows_that_came_first(
    scene: Scene,
) -> None:
    ranks = iter(range(1_000_000))

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(acts, st.sampled_from([1, 2]))
    def check(doings: list, generation: int) -> None:
        rank = next(ranks)
        tail = Tail(scene.run, generation, rank)
        expected: dict[int, list[int]] = {}
        for each in doings:
            with scene.db.write() as connection:
                if each == "seal":
                    sealing.tend(connection, tail, seals=True, sizes=SMALL)
                    continue
                if each == "join":
                    sealing.join(
                        connection, [tail, Tail(scene.run, 3 - generation, 0)], sizes=SMALL
                    )
                    continue
                told, names, ascending = each
                steps = sorted(told, reverse=not ascending)
                made = chunks.rows_of(
                    steps,
                    [step + 0.1 for step in steps],
                    {name: [told[step][METRICS.index(name)] for step in steps] for name in names},
                )
                samples.append(connection, scene.run, generation, rank, made)
            for position, step in enumerate(steps):
                row = [
                    made.values.get(name, chunks.absent(len(steps)))[position] for name in METRICS
                ]
                expected.setdefault(step, bits([made.at[position], *row]))
        for segment in (Segment(generation), Segment(generation, 7, 22)):
            wanted = [
                step for step in sorted(expected) if segment.after_step < step <= segment.last_step
            ]
            with scene.db.read() as connection:
                found = samples.read_many(connection, scene.run, METRICS, [segment], rank=rank)
                count = samples.num_rows(connection, scene.run, "loss", [segment], rank=rank)
            for column, metric in enumerate(METRICS, 1):
                series = found[metric]
                assert series.steps.tolist() == wanted
                assert bits(series.at) == [expected[step][0] for step in wanted]
                assert bits(series.values) == [expected[step][column] for step in wanted]
            assert count >= len(wanted)
            assert (count > 0) == bool(wanted)

    check()


def told(steps: range, **values: float) -> chunks.Rows:
    return chunks.rows_of(
        list(steps),
        [float(step) for step in steps],
        {name: [value] * len(steps) for name, value in values.items()},
    )


def test_sealed_rows_are_read_by_column_and_only_where_they_are_asked_for(scene: Scene) -> None:
    tail = Tail(scene.run, 1, 0)
    with scene.db.write() as connection:
        samples.append(connection, *astuple(tail), told(range(1, 10_001), loss=1.0, lr=2.0))
        samples.append(connection, *astuple(tail), told(range(10_001, 20_001), loss=3.0, lr=4.0))
        assert sealing.due(connection, seals=True) == [tail]
        assert sealing.tend(connection, tail, seals=True) == sealing.Done(2, 20_000)
        assert sealing.due(connection, seals=True) == []
    assert scene.rows(tables.sample_chunks) == []
    stored = scene.rows(tables.sample_blocks)
    assert [(each["metric"], each["first_step"]) for each in stored] == [
        (name, first) for name in ("at", "loss", "lr", "step") for first in (1, 10_001)
    ]
    # Whoever reads what it need not, meets this.
    b = tables.sample_blocks.c
    with scene.db.write() as connection:
        connection.execute(
            update(tables.sample_blocks)
            .where((b.metric == "lr") | (b.first_step == 1))
            .values(data=b"damaged")
        )
    with scene.db.read() as connection:
        found = samples.read(connection, scene.run, "loss", [Segment(1, 10_500, 10_502)])
    assert (found.steps.tolist(), found.values.tolist()) == ([10_501, 10_502], [3.0, 3.0])


def astuple(tail: Tail) -> tuple[str, int, int]:
    return tail.run, tail.generation, tail.rank


def test_a_living_attempt_keeps_its_newest_rows_as_they_came(scene: Scene) -> None:
    tail = Tail(scene.run, 2, 0)
    with scene.db.write() as connection:
        for first in range(1, 11_000, 1000):
            samples.append(connection, *astuple(tail), told(range(first, first + 1000), loss=1.0))
        assert sealing.due(connection, seals=False) == [tail]
        assert sealing.tend(connection, tail, seals=True) == sealing.Done(9, 9000)
        assert sealing.due(connection, seals=True) == []
    assert [(row["first_step"], row["num_rows"]) for row in scene.rows(tables.sample_chunks)] == [
        (9001, 1000),
        (10_001, 1000),
    ]


def test_skipped_steps_stay_counted_whatever_is_sealed_and_told_again(scene: Scene) -> None:
    tail = Tail(scene.run, 1, 0)

    def counted() -> list[int]:
        with scene.db.read() as connection:
            return [
                samples.num_skipped(connection, scene.run, segments)
                for segments in (whole([1]), [Segment(1, 3, 8)])
            ]

    with scene.db.write() as connection:
        samples.append(connection, *astuple(tail), told(range(1, 7), applied=0.0))
        samples.append(connection, *astuple(tail), told(range(7, 11), applied=1.0))
    assert counted() == [6, 3]
    with scene.db.write() as connection:
        assert sealing.tend(connection, tail, seals=True, sizes=SMALL).rows_sealed == 10
    assert counted() == [6, 3]
    with scene.db.write() as connection:
        samples.append(connection, *astuple(tail), told(range(5, 12), applied=0.0))
    assert counted() == [7, 3]


def test_nothing_is_sealed_while_a_control_plane_of_the_release_before_may_run(
    scene: Scene, clock: FakeClock
) -> None:
    tail = Tail(scene.run, 1, 0)
    s = tables.sample_sealing.c
    with scene.db.write() as connection:
        for first in range(1, 1001, 100):
            samples.append(connection, *astuple(tail), told(range(first, first + 100), loss=1.0))
        connection.execute(
            update(tables.sample_sealing).values(not_before=clock.now() + timedelta(seconds=9))
        )
    clockwork = Clockwork(scene.db, clock, Reconciler(scene.db, clock, up_since=clock.now()))
    clockwork.tend_samples()
    assert [row["num_rows"] for row in scene.rows(tables.sample_chunks)] == [1000]
    assert scene.rows(tables.sample_blocks) == []
    clock.pass_s(10)
    clockwork.tend_samples()
    assert scene.rows(tables.sample_chunks) == []
    with scene.db.read() as connection:
        assert connection.scalar(select(s.id)) == 1
        assert len(samples.read(connection, scene.run, "loss", whole([1]))) == 1000


def test_a_database_with_runs_is_sealed_an_hour_after_its_migration(tmp_path: Path) -> None:
    for has_runs in (False, True):
        db = Database(f"sqlite:///{tmp_path}/{has_runs}.db")
        schema.upgrade(db, to="0002")
        if has_runs:
            with db.write() as connection:
                connection.execute(
                    text(
                        "INSERT INTO runs (id, name, state, state_since, desired, generation, "
                        "version, priority, spec, workload_key, checkpoint_root, created_at, "
                        "created_by, because, next_look_at, touched) VALUES ('r', 'r', 'queued', "
                        "'2026-01-01', 'running', 0, 1, 0, '{}', 'w', 'c', '2026-01-01', 'a', '', "
                        "'2026-01-01', 0)"
                    )
                )
        schema.upgrade(db)
        now = datetime.now(UTC)
        with db.read() as connection:
            assert sealing.may_seal(connection, now=now) is not has_runs
            assert sealing.may_seal(connection, now=now + timedelta(hours=1))
        db.close()


def test_samples_that_are_damaged_are_named_and_spoil_no_others(
    scene: Scene, clock: FakeClock
) -> None:
    for rank in (0, 1, 2):
        with scene.db.write() as connection:
            for step in range(1, 12):
                rows = told(range(step, step + 1), compute_s=1.0)
                samples.append(connection, scene.run, 2, rank, rows)
            samples.append(connection, scene.run, 1, rank, told(range(1, 601), compute_s=1.0))
    c = tables.sample_chunks.c
    with scene.db.write() as connection:
        connection.execute(
            update(tables.sample_chunks).where(c.rank == 1).values(columns=b"nonsense")
        )
    Clockwork(scene.db, clock, Reconciler(scene.db, clock, up_since=clock.now())).tend_samples()
    left = scene.rows(tables.sample_chunks)
    assert [each["rank"] for each in left if each["rank"] != 1] == [0, 2]
    assert len([each for each in left if each["rank"] == 1]) == 12
    assert {each["rank"] for each in scene.rows(tables.sample_blocks)} == {0, 2}
    with scene.db.read() as connection, pytest.raises(UnreadableError, match="damaged"):
        samples.read(connection, scene.run, "compute_s", whole([2]))
    for stored in (b"", b"\x07x", b"\x01x", b"\x01" + zlib.compress(b"odd")):
        with pytest.raises(UnreadableError):
            blocks.decode(stored)


def test_readers_see_each_row_once_while_it_is_rewritten(scene: Scene) -> None:
    tail = Tail(scene.run, 2, 0)
    wrong: list[object] = []
    over = threading.Event()

    def look() -> None:
        before = 0
        while not over.is_set():
            with scene.db.read() as connection:
                steps = samples.read(connection, scene.run, "loss", whole([2])).steps.tolist()
            if len(steps) < before or steps != list(range(1, len(steps) + 1)):
                wrong.append(steps)
            before = len(steps)

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    sealed = 0
    for step in range(1, 91):
        with scene.db.write() as connection:
            samples.append(connection, *astuple(tail), told(range(step, step + 1), loss=1.0))
        with scene.db.write() as connection:
            sealed += sealing.tend(connection, tail, seals=True, sizes=SMALL).rows_sealed
    over.set()
    for reader in readers:
        reader.join()
    assert wrong == []
    assert sealed > 50


def test_two_that_rewrite_the_same_samples_lose_and_double_nothing(scene: Scene) -> None:
    tail = Tail(scene.run, 1, 0)
    together = threading.Barrier(2)
    unexpected: list[BaseException] = []

    def tend() -> None:
        for _ in range(12):
            together.wait(30)
            try:
                with scene.db.write() as connection:
                    sealing.tend(connection, tail, seals=True, sizes=SMALL)
            except ConflictError:
                pass
            except BaseException as error:
                unexpected.append(error)
                raise
            together.wait(30)

    others = [threading.Thread(target=tend) for _ in range(2)]
    with scene.db.write() as connection:
        for first in range(1, 201, 2):
            samples.append(
                connection, *astuple(tail), told(range(first, first + 3), loss=1.0 * first)
            )
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert unexpected == []
    with scene.db.read() as connection:
        found = samples.read(connection, scene.run, "loss", whole([1]))
    assert found.steps.tolist() == list(range(1, 202))
    older = [step - 1 if step % 2 == 0 else max(1, step - 2) for step in range(1, 202)]
    assert found.values.tolist() == older


def test_infinities_and_nan_come_back_from_blocks_as_they_are(scene: Scene) -> None:
    tail = Tail(scene.run, 1, 0)
    values = [math.inf, -math.inf, math.nan, None, -0.0, 5e-324]
    with scene.db.write() as connection:
        made = chunks.rows_of([1, 2, 3, 4, 5, 6], [0.0] * 6, {"loss": values})
        samples.append(connection, *astuple(tail), made)
        assert sealing.tend(connection, tail, seals=True, sizes=SMALL).rows_sealed == 6
        found = single.series(connection, scene.run, "loss", generation=1, points=10)
    assert [point[2] for point in found["points"]] == [
        "Infinity",
        "-Infinity",
        "NaN",
        None,
        -0.0,
        5e-324,
    ]
