"""What each side says for itself, because sides do not import each other, is the same word."""

from __future__ import annotations

from typing import get_args

from control.lifecycle import ALLOWED_FROM, TERMINAL, State
from control.rights import ROLES
from dashboard import states, steering
from trainmaster.cli import pace
from trainmaster.cli.drill import FaultName
from trainmaster.cli.tokens import Role
from trainmaster.orders import Fault


def test_a_run_has_ended_in_the_same_states_everywhere():
    assert pace.TERMINAL == TERMINAL
    assert states.TERMINAL == TERMINAL


def test_every_state_has_a_look():
    assert set(states.RUN) == set(State)


def test_a_button_can_be_pressed_where_the_control_plane_would_follow():
    for kind in get_args(steering.Kind):
        request, _ = steering.request_body(kind, {})
        pressed = {each for each in State if steering.verb(kind, each, "operator").enabled}
        allowed = set(ALLOWED_FROM[request])
        # To hold is to pause ranks that run.
        assert pressed <= allowed if kind == "hold" else pressed == allowed, kind


def test_choices_on_the_command_line_are_those_of_the_vocabulary():
    assert {each.value for each in FaultName} == set(get_args(Fault))
    assert {each.value for each in Role} == set(ROLES)
