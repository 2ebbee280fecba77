"""What people ask, and how far what ranks are told has come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trainmaster.orders import Drill


@dataclass(frozen=True, slots=True)
class Request:
    """What a person asked and no turn has answered for good yet: kinds pause, resume, stop,
    checkpoint, restore, amend, drill.

    Attributes:
        state: pending (no turn has seen it), accepted (under way). Final states are applied and
            refused.
        generation: the generation that carries it out, once accepted.
        order_seq: the order that carries it out, if one does.
    """

    id: int
    kind: str
    args: Mapping[str, Any]
    actor: str
    why: str
    state: str
    created_at: datetime
    generation: int | None = None
    order_seq: int | None = None


@dataclass(frozen=True, slots=True)
class OrderStatus:
    """An order of the current generation and how far it has come: sent, received, applied, refused.
    `sent_at`: when it was given.
    """

    seq: int
    kind: str
    args: Mapping[str, Any]
    state: str
    step: int | None = None
    because: str = ""
    request: int | None = None
    sent_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class DrillStatus:
    """A drill of this run: where it was sent, and the (generation, step, batch) at which it has
    fired so far.
    """

    drill: Drill
    generation: int
    fired: tuple[tuple[int, int, int], ...] = ()
