"""Fewer points, and nothing lost that a person would act on."""

from __future__ import annotations

import itertools
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from control.db.samples.downsample import thinned
from control.db.samples.series import Series
from trainmaster.spool import MISSING, is_missing

singles = st.one_of(st.floats(-1e6, 1e6), st.sampled_from([math.nan, math.inf, -math.inf, MISSING]))
runs = st.builds(lambda value, times: [value] * times, singles, st.integers(1, 20))
values = st.one_of(
    st.lists(singles, min_size=1, max_size=300),
    st.lists(runs, min_size=1, max_size=40).map(
        lambda parts: [each for part in parts for each in part]
    ),
)


def series(given_values: list[float]) -> Series:
    count = len(given_values)
    steps = np.arange(1, count + 1)
    return Series(np.ones(count, dtype=np.int64), steps, steps * 1.0, np.array(given_values))


@given(values, st.integers(2, 80))
def test_at_most_so_many_points_are_left_ascending_with_the_first_and_the_last(
    given_values, points
):
    left = thinned(series(given_values), points).steps.tolist()
    assert len(left) <= max(points, 2)
    assert left == sorted(set(left))
    assert (left[0], left[-1]) == (1, len(given_values))


@given(values, st.integers(1, 400))
def test_nothing_is_left_out_when_all_points_fit(given_values, more):
    whole = series(given_values)
    assert thinned(whole, max(2, len(given_values)) + more) is whole


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400), st.integers(6, 120))
def test_the_lowest_and_the_highest_of_every_stretch_stay(given_values, points):
    left = thinned(series(given_values), points).steps.tolist()
    count = (points - 2) // 2
    if len(given_values) <= 2 * count:
        return
    length = (len(given_values) - 1) / count
    edges = [0, *(int(length * (each + 1)) + 1 for each in range(count))]
    for start, end in itertools.pairwise(edges):
        kept = [given_values[step - 1] for step in left if start < step <= end]
        stretch = given_values[start:end]
        assert {min(stretch), max(stretch)} <= set(kept)


@given(values, st.integers(24, 120))
def test_both_ends_of_every_run_of_what_is_not_finite_stay(given_values, points):
    whole = series(given_values)
    left = set(thinned(whole, points).steps.tolist())
    words = [
        "" if math.isfinite(value) or is_missing(value) else str(value) for value in given_values
    ]
    ends, step = [], 1
    for word, run in itertools.groupby(words):
        length = len(list(run))
        if word:
            ends += [(word, step), (word, step + length - 1)]
        step += length
    if len(set(ends)) <= points // 3:
        assert {step for _, step in ends} <= left
    for kind in {word for word, _ in ends}:
        of_kind = [step for word, step in ends if word == kind]
        assert {of_kind[0], of_kind[-1]} <= left
