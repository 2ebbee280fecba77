import math

import numpy as np

from dashboard.charts.series import (
    OPEN_END,
    Series,
    extent,
    lineage,
    smoothed,
    surviving,
    with_breaks,
)


def series(*points: tuple[int, int, object]) -> Series:
    generations, steps, values = zip(*points, strict=True) if points else ((), (), ())
    return Series.read({"columns": {"generation": generations, "step": steps, "value": values}})


def attempt(generation: int, parent: int | None, resumed_from: int) -> dict[str, object]:
    return {
        "generation": generation,
        "parent_generation": parent,
        "resumed_from_step": resumed_from,
    }


def test_words_for_non_finite_numbers_come_back_as_what_they_say() -> None:
    read = series((1, 1, "NaN"), (1, 2, "Infinity"), (1, 3, "-Infinity"), (1, 4, None), (1, 5, 2.5))
    assert math.isnan(read.values[0])
    assert read.values[1:3].tolist() == [math.inf, -math.inf]
    assert read.values[4] == 2.5


def test_what_was_not_measured_is_told_from_what_was_measured_to_be_nan() -> None:
    read = series((1, 1, "NaN"), (1, 2, None), (1, 3, 1.0))
    assert read.measured.tolist() == [True, False, True]
    assert read.non_finite.tolist() == [True, False, False]


def test_an_empty_series_is_a_series() -> None:
    read = series()
    assert len(read) == 0
    assert len(with_breaks(read)) == 0
    assert surviving(read, {1: 5}).tolist() == []


def test_the_parent_survives_up_to_where_its_child_resumed() -> None:
    assert lineage([attempt(1, None, 0), attempt(2, 1, 100)]) == {2: OPEN_END, 1: 100}


def test_a_generation_that_the_newest_does_not_descend_from_is_abandoned_whole() -> None:
    attempts = [attempt(1, None, 0), attempt(2, 1, 100), attempt(3, 1, 50)]
    assert lineage(attempts) == {3: OPEN_END, 1: 50}


def test_going_back_behind_an_earlier_fork_shortens_all_ancestors() -> None:
    attempts = [attempt(1, None, 0), attempt(2, 1, 100), attempt(3, 2, 60)]
    assert lineage(attempts) == {3: OPEN_END, 2: 60, 1: 60}


def test_a_run_without_attempts_has_no_lineage_and_keeps_all_points() -> None:
    assert lineage([]) == {}
    assert surviving(series((1, 1, 1.0), (2, 1, 1.0)), {}).all()


def test_points_beyond_the_fork_are_abandoned() -> None:
    points = series((1, 99, 1.0), (1, 100, 1.0), (1, 101, 1.0), (2, 101, 1.0))
    assert surviving(points, {2: OPEN_END, 1: 100}).tolist() == [True, True, False, True]


def test_the_line_goes_on_where_generations_follow_each_other() -> None:
    assert len(with_breaks(series((1, 99, 1.0), (1, 100, 2.0), (2, 101, 3.0)))) == 3


def test_the_line_breaks_between_abandoned_branches() -> None:
    broken = with_breaks(series((1, 101, 1.0), (1, 102, 2.0), (2, 61, 3.0)))
    assert broken.steps.tolist() == [101, 102, 102, 61]
    assert np.isnan(broken.values[2])
    assert not broken.measured[2]


def test_the_extent_spans_all_series_and_is_unknown_for_a_single_step() -> None:
    assert extent([series((1, 5, 1.0)), series((1, 2, 1.0), (1, 3, 1.0)), series()]) == (2, 5)
    assert extent([series((1, 5, 1.0))]) is None
    assert extent([]) is None


def test_smoothing_keeps_gaps_and_leaves_what_is_not_finite_out() -> None:
    smooth = smoothed(series((1, 1, 2.0), (1, 2, "NaN"), (1, 3, 4.0), (1, 4, "Infinity")), 0.5)
    assert smooth.values[[0, 2]].tolist() == [2.0, 10 / 3]
    assert np.isnan(smooth.values[1])
    assert np.isinf(smooth.values[3])
