"""What an action is taken on, and what an incident remembers of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Evidence:
    """What an action is taken on.

    Attributes:
        rule: the rule that fires.
        scope: what it fires on: "run", "rank 3", "node oak".
        sentence: what was seen, without a full stop.
    """

    rule: str
    scope: str
    sentence: str
    first_bad_step: int
    last_bad_step: int
    severity: str = "warning"


@dataclass(frozen=True, slots=True)
class Rung:
    """What an incident remembers of an action that was taken.

    Attributes:
        because: sentences for a person.
        remembered: what `succession` and people need to know, beside the action's name.
        state: verifying (it must prove itself), waiting (for a person) or closed.
        closed_as: of a closed one.
    """

    because: str
    remembered: Mapping[str, Any] = field(default_factory=dict)
    state: Literal["verifying", "waiting", "closed"] = "verifying"
    closed_as: str | None = None
