"""What rules look at, and what they have said so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Sample:
    """One run-level value of a metric on the surviving lineage; value is None where it was not
    measured.
    """

    generation: int
    step: int
    at: datetime
    value: float | None


@dataclass(frozen=True, slots=True)
class Alert:
    """The newest alert of a rule and a scope. `flapping`: it stays firing, since its rule fires and
    heals again and again.
    """

    id: int
    rule: str
    scope: str
    state: str
    since: datetime
    first_bad_step: int | None
    value: float | None
    threshold: float | None
    severity: str
    incident: str | None
    generation: int
    flapping: bool = False


@dataclass(frozen=True, slots=True)
class Incident:
    """An incident that is not closed.

    Attributes:
        state: open, verifying (an action must prove itself), waiting (for a person).
        actions: those taken so far, each a mapping with at least `action` and `at`.
        verification: what the action that is on probation is measured against, and how far it has
            come.
        proposed: what a rule in `ask` mode would do, while it waits for an answer: `action` (as in
            a rule file), `rule`, `scope`, `because`, `generation`, `first_bad_step`,
            `last_bad_step`, `severity`, `at`, `answer_by`, and `then`, what happens without one.
    """

    id: str
    opened_at: datetime
    state: str
    rule: str
    rung: int
    first_bad_step: int
    last_bad_step: int
    actions: tuple[Mapping[str, Any], ...] = ()
    verification: Mapping[str, Any] = field(default_factory=dict)
    proposed: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Silence:
    """A rule that is to be quiet now; None: every rule."""

    id: int
    rule: str | None
    ends_at: datetime
