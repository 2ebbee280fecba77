"""What a pipeline schedule must keep to, as tests that anybody can run on their own.

Subclass it where pytest collects, and give the fixture:

    class TestMySchedule(ScheduleContract):
        @pytest.fixture
        def schedule(self) -> Schedule:
            return Schedule("mine", generate)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from trainmaster import schedules
from trainmaster.schedules import Schedule

RANKS = range(1, 6)
VIRTUAL = (1, 2, 3)
MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12)


class ScheduleContract:
    """The tests. A schedule that passes all of them can be planned, simulated and run."""

    @pytest.fixture
    def schedule(self) -> Schedule:
        """Return the schedule under test; to be overridden."""
        pytest.fail("override the fixture `schedule`")

    def test_some_numbers_are_accepted(self, schedule: Schedule) -> None:
        assert any(_accepted(schedule))

    def test_what_is_refused_is_refused_with_a_sentence(self, schedule: Schedule) -> None:
        for ranks, virtual, micro_batches in itertools.product(RANKS, VIRTUAL, MICRO_BATCHES):
            refusal = schedule.refusal(ranks=ranks, virtual=virtual, micro_batches=micro_batches)
            assert refusal is None or schedule.name in refusal
        assert schedule.refusal(ranks=2, virtual=schedule.virtual or 1, micro_batches=0)

    def test_every_order_is_complete_and_never_waits_for_ever(self, schedule: Schedule) -> None:
        for ranks, virtual, micro_batches in _accepted(schedule):
            order = schedule.generate(ranks, virtual, micro_batches)
            assert len(order) == ranks
            problem = schedules.problem_of(order, schedule, virtual, micro_batches)
            assert problem is None, f"{ranks} x {virtual}, {micro_batches}: {problem}"

    def test_the_same_numbers_give_the_same_order(self, schedule: Schedule) -> None:
        for numbers in _accepted(schedule):
            assert schedule.generate(*numbers) == schedule.generate(*numbers)


def _accepted(schedule: Schedule) -> Iterator[tuple[int, int, int]]:
    for ranks, virtual, micro_batches in itertools.product(RANKS, VIRTUAL, MICRO_BATCHES):
        if not schedule.refusal(ranks=ranks, virtual=virtual, micro_batches=micro_batches):
            yield ranks, virtual, micro_batches
