"""Clocks: the round with the shortest way counts, and half of it is the error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.reporting.clock import askers, best


def test_the_shortest_round_counts() -> None:
    offset_s, error_s = best([(0.0, 105.0, 8.0), (10.0, 111.5, 11.0), (20.0, 125.0, 24.0)])
    assert (offset_s, error_s) == (101.0, 0.5)


@given(
    st.lists(
        st.tuples(st.floats(0, 5), st.floats(0, 5), st.floats(0, 100)), min_size=1, max_size=8
    ),
    st.floats(-1000, 1000),
)
def test_the_true_offset_lies_within_the_error(
    ways: list[tuple[float, float, float]], true: float
) -> None:
    rounds = [(at, at + there + true, at + there + back) for there, back, at in ways]
    offset_s, error_s = best(rounds)
    assert abs(offset_s - true) <= error_s + 1e-9
    assert error_s == pytest.approx(min(there + back for there, back, _ in ways) / 2, abs=1e-9)


def test_one_rank_of_a_node_asks_for_all() -> None:
    assert askers(["oak", "oak", "elm", "oak", "elm"]) == [0, 0, 2, 0, 2]
    assert askers([None, None]) == [0, 1]
