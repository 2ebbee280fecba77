"""Orders to ranks, and drills. Orders ride in the Assignment; rank 0 applies those with a seq
beyond its last, in order.

What a generation leaves unapplied ends as `refused: superseded`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

OrderKind = Literal["checkpoint", "hold", "release", "stop", "timeline"]


class OrderWord(IntEnum):
    """An order as the number that rank 0 puts into the status all-reduce; 0 says there is none."""

    NONE = 0
    CHECKPOINT = 1
    HOLD = 2
    RELEASE = 3
    STOP = 4
    STOP_WITHOUT_CHECKPOINT = 5
    TIMELINE = 6


class Order(BaseModel):
    """One thing that the ranks of a generation are told to do at a step boundary.

    `args` of `stop`: {"checkpoint": bool}. The others take none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    seq: Annotated[int, Field(ge=1)]
    kind: OrderKind
    args: dict[str, Any] = {}

    @property
    def word(self) -> OrderWord:
        """The order as rank 0 tells it to the others."""
        if self.kind == "stop" and not self.args.get("checkpoint", True):
            return OrderWord.STOP_WITHOUT_CHECKPOINT
        return OrderWord[self.kind.upper()]


Fault = Literal["kill", "hang", "slow", "nan", "spike", "corrupt", "disconnect"]

NUMERIC_FAULTS: frozenset[str] = frozenset({"nan", "spike"})


class Drill(BaseModel):
    """A fault injected on purpose.

    Numeric faults poison the batches of `steps` consecutive steps from `at_step` (the next step
    when null); other faults last `duration_s`. A sticky one is carried into later generations as
    the `batches` it was first fired for.

    Attributes:
        batches: inclusive batch ranges to poison; set once it is known which they are.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Annotated[int, Field(ge=1)]
    fault: Fault
    rank: int | None = None
    node: str | None = None
    at_step: Annotated[int, Field(ge=1)] | None = None
    steps: Annotated[int, Field(ge=1)] = 5
    duration_s: Annotated[float, Field(gt=0)] = 10.0
    sticky: bool = False
    batches: tuple[tuple[int, int], ...] = ()
