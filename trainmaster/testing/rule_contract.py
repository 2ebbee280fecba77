"""What third parties' conditions and choices of actions must keep to, as tests that anybody can
run on their own.

Subclass one where pytest collects, and give the fixture:

    class TestMine(ConditionContract):
        @pytest.fixture
        def condition(self) -> CustomCondition:
            return MINE
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest

from trainmaster.actions import Chooser, PlainAction, Situation
from trainmaster.conditions import CustomCondition


class ConditionContract:
    """The tests of a condition. `params` may be overridden, if it needs some."""

    @pytest.fixture
    def condition(self) -> CustomCondition:
        """Return the condition under test; to be overridden."""
        pytest.fail("override the fixture `condition`")

    @pytest.fixture
    def params(self) -> dict[str, Any]:
        """Return what a rule would give it."""
        return {}

    def test_it_answers_yes_no_or_nothing(
        self, condition: CustomCondition, params: dict[str, Any]
    ) -> None:
        for values in histories(condition.window):
            assert condition.is_bad(values, params) in {True, False, None}

    def test_the_same_values_give_the_same_answer(
        self, condition: CustomCondition, params: dict[str, Any]
    ) -> None:
        first = [condition.is_bad(values, params) for values in histories(condition.window)]
        again = [
            condition.is_bad(values, params) for values in reversed(histories(condition.window))
        ]
        assert first == again[::-1]

    def test_it_changes_nothing_of_its_own(
        self, condition: CustomCondition, params: dict[str, Any]
    ) -> None:
        before = dict(params)
        for values in histories(condition.window):
            condition.is_bad(values, params)
        assert params == before


class ChooserContract:
    """The tests of a choice of actions. `params` may be overridden, if it needs some."""

    @pytest.fixture
    def chooser(self) -> Chooser:
        """Return the chooser under test; to be overridden."""
        pytest.fail("override the fixture `chooser`")

    @pytest.fixture
    def params(self) -> dict[str, Any]:
        """Return what a rule would give it."""
        return {}

    def test_it_chooses_among_the_closed_set(
        self, chooser: Chooser, params: dict[str, Any]
    ) -> None:
        for situation in SITUATIONS:
            chosen = chooser.choose(situation, params)
            assert chosen is None or isinstance(chosen, PlainAction)

    def test_the_same_situation_gives_the_same_action(
        self, chooser: Chooser, params: dict[str, Any]
    ) -> None:
        first = [chooser.choose(situation, params) for situation in SITUATIONS]
        again = [chooser.choose(situation, params) for situation in reversed(SITUATIONS)]
        assert first == again[::-1]


def histories(window: int) -> list[Sequence[float | None]]:
    """Return what a condition may be asked about: the newest value is always finite."""
    draw = random.Random(0)
    found: list[Sequence[float | None]] = [(1.0,), (0.0,), (-1e308,), (None, 1.0), (math.nan, 1.0)]
    for length in range(1, window + 1, max(1, window // 16)):
        found.append(tuple(draw.gauss(3.0, 0.1) for _ in range(length)))
        found.append((*(draw.choice([None, math.inf, 1.0]) for _ in range(length - 1)), 2.0))
    return [values[-window:] for values in found]


SITUATIONS = tuple(
    Situation("a rule", metric, scope, value, first, first + extent, taken)
    for metric, scope in (("loss", "run"), ("compute_s", "rank 3"), ("latency_ms", "link a - b"))
    for value in (None, 1.0, math.nan)
    for first, extent in ((1, 0), (100, 20))
    for taken in ((), ("rollback",), ("rollback", "rollback", "stop"))
)
