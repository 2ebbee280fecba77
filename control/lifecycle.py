"""The run's state machine. Rule 1: every transition is in `TRANSITIONS` and nowhere else. Rule 2:
an illegal one raises and changes nothing. What a person may ask in which state is a table too, read
by the API and the deciders.

A state says what the ranks of the newest attempt are known to do, not what is wished; the wish is
`Desired`. An attempt lives in starting, running, pausing, held, unreachable and stopping; in all
other states no rank of the run should exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from trainmaster.errors import ConflictError


class State(StrEnum):
    """What a run is doing."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    RECOVERING = "recovering"
    PAUSING = "pausing"
    PAUSED = "paused"
    HELD = "held"
    UNREACHABLE = "unreachable"
    STOPPING = "stopping"
    STOPPED = "stopped"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class Desired(StrEnum):
    """What a person, or a rule in their place, wants the run to do."""

    RUNNING = "running"
    PAUSED = "paused"
    HELD = "held"
    STOPPED = "stopped"


class Happening(StrEnum):
    """What moves a run from one state to another."""

    ATTEMPT_LAUNCHED = "attempt_launched"
    RANKS_READY = "ranks_ready"
    PAUSE_ORDERED = "pause_ordered"
    PAUSED = "paused"
    HOLD_APPLIED = "hold_applied"
    HOLD_RELEASED = "hold_released"
    STOP_ORDERED = "stop_ordered"
    STOP_REFUSED = "stop_refused"
    STOPPED = "stopped"
    CONTACT_LOST = "contact_lost"
    CONTACT_RESTORED = "contact_restored"
    CONTACT_RESTORED_EARLY = "contact_restored_early"
    ATTEMPT_FAILED = "attempt_failed"
    ROLLBACK_ORDERED = "rollback_ordered"
    RESTORE_ORDERED = "restore_ordered"
    AMENDED = "amended"
    MOVED = "moved"
    RESUMED = "resumed"
    FINISHED = "finished"
    GAVE_UP = "gave_up"


_LIVE = (
    State.STARTING,
    State.RUNNING,
    State.HELD,
    State.UNREACHABLE,
    State.PAUSING,
    State.STOPPING,
)
_BEFORE_END = (State.QUEUED, State.RECOVERING, *_LIVE)

TERMINAL: frozenset[State] = frozenset({State.SUCCEEDED, State.FAILED, State.STOPPED})
"""A run leaves these only when a person restores, resumes or amends it."""

WITH_RANKS: frozenset[State] = frozenset(_LIVE)
"""An attempt lives in these."""

ENDED: frozenset[State] = TERMINAL | {State.PAUSED}
"""The run holds no slot and waits for nobody but a person."""


def _from(*states: State) -> tuple[State, ...]:
    return states


_RULES: tuple[tuple[Happening, tuple[State, ...], State], ...] = (
    (Happening.ATTEMPT_LAUNCHED, _from(State.QUEUED, State.RECOVERING), State.STARTING),
    (Happening.RANKS_READY, _from(State.STARTING), State.RUNNING),
    (Happening.PAUSE_ORDERED, _from(State.RUNNING, State.HELD), State.PAUSING),
    (
        Happening.PAUSED,
        _from(State.QUEUED, State.STARTING, State.RECOVERING, State.PAUSING),
        State.PAUSED,
    ),
    (Happening.HOLD_APPLIED, _from(State.RUNNING), State.HELD),
    (Happening.HOLD_RELEASED, _from(State.HELD), State.RUNNING),
    (
        Happening.STOP_ORDERED,
        _from(State.RUNNING, State.HELD, State.PAUSING, State.STOPPING),
        State.STOPPING,
    ),
    (Happening.STOP_REFUSED, _from(State.PAUSING, State.STOPPING), State.RUNNING),
    (Happening.STOPPED, (*_BEFORE_END, State.PAUSED), State.STOPPED),
    (Happening.CONTACT_LOST, _from(State.STARTING, State.RUNNING, State.HELD), State.UNREACHABLE),
    (Happening.CONTACT_RESTORED, _from(State.UNREACHABLE), State.RUNNING),
    (Happening.CONTACT_RESTORED_EARLY, _from(State.UNREACHABLE), State.STARTING),
    (Happening.ATTEMPT_FAILED, _LIVE, State.RECOVERING),
    (Happening.ROLLBACK_ORDERED, _from(State.RUNNING), State.RECOVERING),
    (
        Happening.RESTORE_ORDERED,
        _from(
            State.RUNNING,
            State.PAUSED,
            State.HELD,
            State.UNREACHABLE,
            State.FAILED,
            State.STOPPED,
            State.SUCCEEDED,
        ),
        State.RECOVERING,
    ),
    (
        Happening.AMENDED,
        _from(
            State.RUNNING,
            State.HELD,
            State.UNREACHABLE,
            State.FAILED,
            State.STOPPED,
            State.SUCCEEDED,
        ),
        State.RECOVERING,
    ),
    (Happening.MOVED, _from(State.RUNNING, State.HELD, State.UNREACHABLE), State.RECOVERING),
    (Happening.RESUMED, _from(State.PAUSED, State.STOPPED, State.FAILED), State.QUEUED),
    (Happening.FINISHED, _LIVE, State.SUCCEEDED),
    (Happening.GAVE_UP, _BEFORE_END, State.FAILED),
)

TRANSITIONS: Mapping[tuple[State, Happening], State] = MappingProxyType(
    {(state, happening): after for happening, states, after in _RULES for state in states}
)


def transition(state: State, happening: Happening) -> State:
    """Return the state after `happening`.

    Raises:
        ConflictError: the table has no such transition; nothing has changed.
    """
    after = TRANSITIONS.get((state, happening))
    if after is None:
        raise ConflictError(f"a run that is {state} cannot go on from {happening}")
    return after


ALLOWED_FROM: Mapping[str, tuple[State, ...]] = MappingProxyType(
    {
        "pause": (State.QUEUED, State.STARTING, State.RUNNING, State.RECOVERING, State.HELD),
        "resume": (State.PAUSED, State.HELD, State.STOPPED, State.FAILED),
        "stop": (*_BEFORE_END, State.PAUSED),
        "checkpoint": (State.RUNNING, State.HELD),
        "restore": (
            State.RUNNING,
            State.PAUSED,
            State.HELD,
            State.UNREACHABLE,
            State.FAILED,
            State.STOPPED,
            State.SUCCEEDED,
        ),
        "amend": (
            State.QUEUED,
            State.RUNNING,
            State.PAUSED,
            State.HELD,
            State.FAILED,
            State.STOPPED,
            State.SUCCEEDED,
        ),
        "drill": (State.STARTING, State.RUNNING, State.HELD),
        "timeline": (State.RUNNING,),
        "approve": (State.RUNNING,),
        "dismiss": (*_BEFORE_END, State.PAUSED),
        "stacks": _LIVE,
    }
)
"""The requests of a person, and the states in which each makes sense."""


def refusal(state: str, request: str) -> str | None:
    """Return why a run in `state` cannot follow `request`, as a sentence; None if it can."""
    if state in ALLOWED_FROM[request]:
        return None
    possible = ", ".join(ALLOWED_FROM[request])
    return f"{request} is refused: the run is {state}, and {request} is possible from {possible}."


def state_chart() -> str:
    """Return the table as a mermaid state diagram: one line per transition, in the order of the
    table.
    """
    lines = ["stateDiagram-v2", "    [*] --> queued"]
    lines += [
        f"    {before} --> {after}: {happening.replace('_', ' ')}"
        for (before, happening), after in TRANSITIONS.items()
    ]
    lines += [f"    {state} --> [*]" for state in State if state in TERMINAL]
    return "\n".join(lines)
