"""The suites for third parties' conditions and choices of actions, kept by one of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from trainmaster import actions, conditions, plugins
from trainmaster.actions import Chooser, PlainAction, Rollback, Situation, Stop
from trainmaster.conditions import CustomCondition
from trainmaster.errors import ConflictError, UserError
from trainmaster.testing.rule_contract import ChooserContract, ConditionContract


def rises(values: Sequence[float | None], params: dict[str, Any]) -> bool | None:
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return None
    return known[-1] > known[-2] * params.get("factor", 2)


def once(situation: Situation, params: Mapping[str, Any]) -> PlainAction | None:
    if situation.taken:
        return Stop(action="stop")
    return Rollback(action="rollback") if situation.metric == "loss" else None


RISES = CustomCondition("rises", 4, rises)
ONCE = Chooser("once", once)


class TestCondition(ConditionContract):
    @pytest.fixture
    def condition(self) -> CustomCondition:
        return RISES


class TestChooser(ChooserContract):
    @pytest.fixture
    def chooser(self) -> Chooser:
        return ONCE


def test_both_are_found_by_entry_point_once_and_what_is_neither_is_refused() -> None:
    mine = EntryPoint("rises", f"{__name__}:RISES", plugins.CONDITION_GROUP)
    choice = EntryPoint("once", f"{__name__}:ONCE", plugins.ACTION_GROUP)
    try:
        plugins.add_rule_parts([mine], [choice])
        assert (conditions.CUSTOM["rises"], actions.CHOOSERS["once"]) == (RISES, ONCE)
        with pytest.raises(ConflictError, match="two conditions named 'rises'"):
            conditions.add(CustomCondition("rises", 1, rises))
        wrong = EntryPoint("rises", f"{__name__}:rises", plugins.CONDITION_GROUP)
        with pytest.raises(UserError, match="CustomCondition"):
            plugins.add_rule_parts([wrong], [])
        gone = EntryPoint("gone", "no_such_module:it", plugins.ACTION_GROUP)
        with pytest.raises(UserError, match="cannot be loaded"):
            plugins.add_rule_parts([], [gone])
    finally:
        conditions.CUSTOM.pop("rises", None)
        actions.CHOOSERS.pop("once", None)


def test_a_choice_outside_the_closed_set_is_our_callers_bug() -> None:
    stray: Any = Chooser("stray", lambda situation, params: "delete everything")  # type: ignore[arg-type,return-value]
    actions.add(stray)
    try:
        asked = actions.Choose(action="choose", by="stray")
        situation = Situation("r", "loss", "run", 1.0, 1, 1)
        with pytest.raises(TypeError, match="none of the actions"):
            actions.chosen(asked, situation)
    finally:
        del actions.CHOOSERS["stray"]
