"""Fewer points, and nothing lost that a person would act on."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from control.db.downsample import thinned
from control.db.series import Series

values = st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(math.nan)), min_size=1, max_size=300)


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


@given(values, st.integers(16, 80))
def test_the_highest_the_lowest_and_a_point_that_is_not_finite_stay(given_values, points):
    left = thinned(series(given_values), points).values
    finite = [value for value in given_values if math.isfinite(value)]
    if finite:
        assert {max(finite), min(finite)} <= set(left.tolist())
    assert any(map(math.isnan, left)) == any(map(math.isnan, given_values))
