"""Who may read metrics: asked once in a while, and remembered while nobody can be asked."""

from __future__ import annotations

import pytest

from trainmaster.errors import ForbiddenError, UnauthenticatedError, UnavailableError
from trainmaster.readers import BELIEVED_S, Readers


class ControlPlane:
    """Knows the roles of tokens, and is away at times."""

    def __init__(self, **roles: str) -> None:
        self.roles = roles
        self.away = False
        self.asked = 0

    def role_of(self, token: str) -> str | None:
        self.asked += 1
        if self.away:
            raise UnavailableError("away")
        return self.roles.get(token)


def test_a_role_that_may_read_runs_may_read_metrics_and_an_agents_may_not():
    readers = Readers(ControlPlane(v="viewer", o="operator", a="admin", n="agent").role_of, own="m")
    for token in ("v", "o", "a", "m"):
        readers.admit(token)
    with pytest.raises(ForbiddenError, match="agent"):
        readers.admit("n")
    with pytest.raises(UnauthenticatedError):
        readers.admit("nobody's")


def test_the_control_plane_is_asked_again_after_a_while():
    now = [0.0]
    control = ControlPlane(v="viewer")
    readers = Readers(control.role_of, own=None, now=lambda: now[0])
    readers.admit("v")
    readers.admit("v")
    assert control.asked == 1
    control.roles.clear()
    now[0] += BELIEVED_S
    with pytest.raises(UnauthenticatedError):
        readers.admit("v")


def test_who_was_known_may_read_on_while_the_control_plane_is_away():
    now = [0.0]
    control = ControlPlane(v="viewer")
    readers = Readers(control.role_of, own=None, now=lambda: now[0])
    readers.admit("v")
    control.away = True
    now[0] += 10 * BELIEVED_S
    readers.admit("v")
    with pytest.raises(UnavailableError):
        readers.admit("w")


def test_tokens_that_are_tried_out_do_not_fill_the_memory():
    readers = Readers(ControlPlane().role_of, own=None)
    for number in range(300):
        with pytest.raises(UnauthenticatedError):
            readers.admit(f"guess {number}")
    assert len(readers._told) <= 100
