"""What ranks told becomes one value a step, whichever steps each of them told."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.db.samples.chunks import Rows
from control.db.samples.segments import Segment
from control.db.samples.series import TOKENS_PER_S, Told, concatenated, derive, reduced, together
from trainmaster.spool import MISSING

STEPS = st.lists(st.integers(1, 60), unique=True, max_size=30).map(sorted)


def rows(steps: list[int], **values: list[float]) -> Rows:
    return Rows(
        np.array(steps, dtype=np.int64),
        np.array(steps, dtype=np.float64),
        {name: np.array(column) for name, column in values.items()},
    )


@given(st.lists(STEPS, min_size=1, max_size=4))
def test_steps_of_several_are_all_that_any_told_once_each_and_ascending(
    told: list[list[int]],
) -> None:
    found = together([np.array(each, dtype=np.int64) for each in told])
    assert found.tolist() == sorted({step for each in told for step in each})


@pytest.mark.parametrize("kind", ["mean", "max", "min", "sum"])
def test_one_rank_speaks_for_the_run_and_keeps_what_is_not_finite(kind: str) -> None:
    told = rows([1, 2, 4], x=[2.0, math.nan, MISSING])
    steps, at, values = reduced([(told, told.values["x"])], kind)  # type: ignore[arg-type]
    assert (steps.tolist(), at.tolist()) == ([1, 2, 4], [1.0, 2.0, 4.0])
    assert values.tobytes() == told.values["x"].tobytes()


def test_a_step_that_one_rank_has_not_told_is_reduced_over_the_others() -> None:
    first, second = rows([1, 2], x=[2.0, 4.0]), rows([2, 3], x=[8.0, 10.0])
    steps, _, values = reduced([(first, first.values["x"]), (second, second.values["x"])], "mean")
    assert (steps.tolist(), values.tolist()) == ([1, 2, 3], [2.0, 6.0, 10.0])


@pytest.mark.parametrize(
    ("spent", "expected"), [([1, 2, 3], [10.0, 10.0, 10.0]), ([2, 3], [10.0, 10.0])]
)
def test_speed_stands_where_tokens_and_times_do(spent: list[int], expected: list[float]) -> None:
    tokens = Told({0: rows([1, 2, 3], tokens=[5.0, 5.0, 5.0])})
    times = Told({0: rows(spent, step_time_s=[0.5] * len(spent))})
    found = derive(
        TOKENS_PER_S,
        {"tokens": tokens, "step_time_s": times},
        Segment(1, 0, 10),
        rank=None,
        reduce=None,
        complete_to=None,
    )
    assert found is not None
    assert (found.steps.tolist(), found.values.tolist()) == (spent, expected)
    assert concatenated([found]) is found
