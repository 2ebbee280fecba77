from math import prod

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.tilings import SHAPES, cuts
from trainmaster.checkpoint.reshard import Run, plan, runs
from trainmaster.checkpoint.tiling import Box


def part_of(whole: np.ndarray, box: Box) -> np.ndarray:
    return whole[tuple(slice(o, e) for o, e in zip(box.offset, box.end, strict=True))]


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_cut_restored_into_any_other_cut_equals_slices_of_the_whole(
    data: st.DataObject,
) -> None:
    shape = data.draw(SHAPES)
    stored, wanted = data.draw(cuts(shape)), data.draw(cuts(shape))
    whole = np.arange(prod(shape), dtype=np.int64).reshape(shape)
    shards = [np.ascontiguousarray(part_of(whole, box)).reshape(-1) for box in stored]
    for box in wanted:
        target = np.full(box.volume, -1, dtype=np.int64)
        for fetch in plan(box, stored):
            for run in runs(fetch.part, stored[fetch.index], box):
                piece = shards[fetch.index][run.source : run.source + run.length]
                target[run.target : run.target + run.length] = piece
        assert np.array_equal(target.reshape(box.shape), part_of(whole, box))


@settings(deadline=None)
@given(data=st.data())
def test_runs_ascend_and_no_element_is_moved_twice(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    stored, wanted = data.draw(cuts(shape)), data.draw(cuts(shape))
    for box in wanted:
        for fetch in plan(box, stored):
            ends = (0, 0)
            moved = 0
            for run in runs(fetch.part, stored[fetch.index], box):
                assert run.source >= ends[0]
                assert run.target >= ends[1]
                ends = (run.source + run.length, run.target + run.length)
                moved += run.length
            assert moved == fetch.part.volume


def test_rows_of_a_matrix_are_one_run() -> None:
    whole, rows = Box((0, 0), (8, 16)), Box((2, 0), (3, 16))
    assert list(runs(rows, whole, rows)) == [Run(32, 0, 48)]


def test_columns_of_a_matrix_are_a_run_per_row() -> None:
    whole, columns = Box((0, 0), (3, 16)), Box((0, 4), (3, 2))
    assert list(runs(columns, whole, columns)) == [Run(4, 0, 2), Run(20, 2, 2), Run(36, 4, 2)]


def test_only_shards_that_overlap_are_fetched() -> None:
    stored = [Box((0,), (4,)), Box((4,), (0,)), Box((4,), (4,)), Box((8,), (4,))]
    assert [fetch.index for fetch in plan(Box((5,), (3,)), stored)] == [2]
