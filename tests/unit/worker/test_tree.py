"""A sum goes up a tree in which every rank has its place, and few messages lie between any two."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from worker.tree import RADIX, place_of


@given(size=st.integers(1, 700))
def test_every_rank_but_the_root_is_the_child_of_one_other(size: int) -> None:
    parents = {}
    for rank in range(size):
        for child in place_of(rank, size)[1]:
            assert child not in parents
            parents[child] = rank
    assert parents == {rank: place_of(rank, size)[0] for rank in range(1, size)}
    assert place_of(0, size)[0] is None


@given(size=st.integers(2, 700))
def test_the_tree_is_as_deep_as_the_number_of_ranks_has_digits(size: int) -> None:
    digits = next(count for count in range(1, 9) if size <= RADIX**count)
    for rank in range(size):
        depth, above = 0, rank
        while (parent := place_of(above, size)[0]) is not None:
            depth, above = depth + 1, parent
        assert depth <= digits


def test_eight_ranks_are_a_star() -> None:
    assert place_of(0, 8) == (None, [1, 2, 3, 4, 5, 6, 7])
    assert place_of(5, 8) == (0, [])
    assert place_of(8, 20) == (0, list(range(9, 16)))
    assert place_of(16, 20) == (0, [17, 18, 19])
