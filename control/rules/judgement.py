"""What a rule says of one of the things it watches. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trainmaster.rule import AlertState, Rule

RUN: Final = "run"
"""The scope of what is true of the whole run; others read like "rank 3" or "node oak"."""

RULELESS = frozenset({"silent rank", "hang", "long section"})
"""Alerts that deciders raise without a rule in SQL. What is not here, and is no rule of the run, is
the alert of a rule that was removed, and ends.
"""


@dataclass(frozen=True, slots=True)
class Firing:
    """One time a rule fired: the step of its first bad value, the step at which it fired, and at
    which it was over; and when those two steps ended, in seconds of the ranks' clocks.
    """

    first_bad_step: int
    fired_step: int
    resolved_step: int | None = None
    fired_at: float = 0.0
    resolved_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a rule says after all steps so far.

    Attributes:
        value: the newest bad value while pending or firing, else the newest value.
        threshold: what it was compared with, where that is one number.
        first_bad_step, last_bad_step: of the trouble that is pending or firing; None otherwise.
        firings: all so far, or of late; the present one included.
        patience_is_over: whether it has fired for the rule's `patience_steps`.
        is_flapping: whether it has fired and healed again and again of late
            (`control.rules.flapping`); `state` is what it says now all the same.
    """

    rule: Rule
    scope: str = RUN
    state: AlertState = "inactive"
    value: float | None = None
    threshold: float | None = None
    first_bad_step: int | None = None
    last_bad_step: int | None = None
    firings: tuple[Firing, ...] = ()
    patience_is_over: bool = False
    is_flapping: bool = False
