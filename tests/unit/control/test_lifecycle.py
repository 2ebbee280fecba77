"""The table of states, by its properties."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.lifecycle import (
    ALLOWED_FROM,
    ENDED,
    TERMINAL,
    TRANSITIONS,
    WITH_RANKS,
    Happening,
    State,
    refusal,
    state_chart,
    transition,
)
from trainmaster.errors import ConflictError

DOCS = Path(__file__).parents[3] / "docs"


def reachable(start: State) -> set[State]:
    found, new = set(), {start}
    while new:
        found |= new
        new = {after for (before, _), after in TRANSITIONS.items() if before in new} - found
    return found


@given(st.sampled_from(State), st.sampled_from(Happening))
def test_every_pair_is_in_the_table_or_raises(state: State, happening: Happening):
    if (state, happening) in TRANSITIONS:
        assert transition(state, happening) in State
    else:
        with pytest.raises(ConflictError):
            transition(state, happening)


@pytest.mark.parametrize("state", State)
def test_an_end_can_be_reached_from_every_state(state: State):
    assert reachable(state) >= TERMINAL


@pytest.mark.parametrize("state", State)
def test_every_state_can_be_reached_from_the_first(state: State):
    assert state in reachable(State.QUEUED)


@pytest.mark.parametrize("happening", Happening)
def test_every_happening_is_used(happening: Happening):
    assert any(each == happening for _, each in TRANSITIONS)


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_an_end_is_left_only_when_a_person_asks(state: State):
    leaving = {happening for before, happening in TRANSITIONS if before == state}
    assert leaving <= {Happening.RESUMED, Happening.RESTORE_ORDERED, Happening.AMENDED}


def test_ranks_exist_in_no_state_that_has_ended():
    assert not WITH_RANKS & ENDED


def test_restore_and_resume_are_allowed_from_where_outsiders_rely_on():
    assert set(ALLOWED_FROM["restore"]) == {
        "running",
        "paused",
        "held",
        "unreachable",
        "failed",
        "stopped",
        "succeeded",
    }
    assert set(ALLOWED_FROM["resume"]) == {"paused", "held", "stopped", "failed"}


def test_a_refusal_names_the_state_and_where_it_is_possible():
    told = refusal("succeeded", "pause")
    assert told is not None
    assert "succeeded" in told
    assert "running" in told
    assert refusal("running", "pause") is None


def test_the_chart_in_the_docs_is_the_table():
    page = (DOCS / "lifecycle.md").read_text("utf-8")
    block = re.search(r"```mermaid\n(.*?)\n```", page, re.DOTALL)
    assert block is not None
    assert block[1] == state_chart(), "run scripts/lifecycle_chart.py"
