"""What comes in: the bodies of requests, closed and without coercion where they are ours."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from trainmaster.orders import NUMERIC_FAULTS, Fault
from trainmaster.plan import ParallelAsk, Strict

BEYOND_COUNTING = 2**62
"""Above every number that is counted here, and below what a database takes for an integer."""

Text = Annotated[str, Field(max_length=2000)]
Key = Annotated[str, Field(min_length=1, max_length=200)]
Kind = Literal[
    "pause",
    "resume",
    "stop",
    "checkpoint",
    "restore",
    "amend",
    "drill",
    "timeline",
    "approve",
    "dismiss",
    "stacks",
]


class CalibrateBody(Strict):
    """What a node is to measure beside itself: the layers of a spec's workload."""

    spec: dict[str, Any] | str | None = None


class SubmitBody(Strict):
    """A run: its spec as a mapping or as YAML."""

    spec: dict[str, Any] | str | None = None
    text: str | None = None
    idempotency_key: Key | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.spec is None) == (self.text is None):
            raise ValueError("give either spec (a mapping) or text (YAML)")
        return self


class RequestBody(Strict):
    """What is asked of a run."""

    kind: Kind
    args: dict[str, Any] = {}
    why: Text = ""
    idempotency_key: Key | None = None
    expected_version: Annotated[int, Field(ge=0, lt=BEYOND_COUNTING)] | None = None


class NoArgs(Strict):
    """Nothing to say beyond the kind."""


class PauseArgs(Strict):
    """`hold` keeps the ranks waiting at a step boundary; without it they checkpoint and end."""

    hold: bool = False


class StopArgs(Strict):
    """Whether to take a checkpoint first."""

    checkpoint: bool = True


class RestoreArgs(Strict):
    """Where to go back to, and what is to differ this time."""

    checkpoint: Annotated[str, Field(max_length=200)]
    skip_steps: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    lr_factor: Annotated[float, Field(gt=0, le=10)] | None = None
    plan: ParallelAsk | None = None
    forget_skips: bool = False


class AmendArgs(Strict):
    """The changed spec, whole."""

    spec: dict[str, Any] | str


class DrillArgs(Strict):
    """A fault to inject; see `trainmaster.orders.Drill`."""

    fault: Fault
    rank: Annotated[int, Field(ge=0, lt=BEYOND_COUNTING)] | None = None
    node: Annotated[str, Field(max_length=63)] | None = None
    at_step: Annotated[int, Field(ge=1, lt=BEYOND_COUNTING)] | None = None
    steps: Annotated[int, Field(ge=1, le=100_000)] = 5
    duration_s: Annotated[float, Field(gt=0, le=86_400)] = 10.0
    sticky: bool = False

    @model_validator(mode="after")
    def _sticks(self) -> Self:
        if self.sticky and self.fault not in NUMERIC_FAULTS:
            raise ValueError(f"only {' and '.join(sorted(NUMERIC_FAULTS))} can be sticky")
        return self


class ApproveArgs(Strict):
    """Which incident may act, and how, if otherwise than it proposes."""

    incident: Annotated[str, Field(max_length=200)]
    action: Annotated[str, Field(max_length=40)] | None = None


class DismissArgs(Strict):
    """Which incident is closed without an action."""

    incident: Annotated[str, Field(max_length=200)]


class AnswerBody(Strict):
    """An answer to an incident that asks. `action`: another one than it proposes."""

    action: Annotated[str, Field(max_length=40)] | None = None
    why: Text = ""
    idempotency_key: Key | None = None
    expected_version: Annotated[int, Field(ge=0, lt=BEYOND_COUNTING)] | None = None


class StacksArgs(Strict):
    """Whose stacks are wanted; without a rank those of all."""

    rank: Annotated[int, Field(ge=0, lt=BEYOND_COUNTING)] | None = None


class WantedSeries(Strict):
    """A series: of one rank, or without `rank` of the run."""

    metric: Annotated[str, Field(max_length=200)]
    rank: Annotated[int, Field(ge=0, lt=BEYOND_COUNTING)] | None = None


class SeveralBody(Strict):
    """Series that are wanted together, all of the same stretch of steps."""

    series: Annotated[list[WantedSeries], Field(min_length=1, max_length=2000)]
    generation: Annotated[int, Field(ge=1, lt=BEYOND_COUNTING)] | None = None
    all_generations: bool = False
    after_step: Annotated[int, Field(ge=0, lt=BEYOND_COUNTING)] = 0
    until_step: Annotated[int, Field(ge=1, lt=BEYOND_COUNTING)] | None = None
    points: Annotated[int, Field(ge=2, le=10_000)] = 1000
    statistics: bool = False
    tokens: bool = False


class LookBody(Strict):
    """What the page of a run needs at once.

    Attributes:
        known: the version of each part that the reader has; such a part comes without its answer.
        series: what is asked of `/series` besides.
    """

    known: Annotated[dict[str, Annotated[str, Field(max_length=64)]], Field(max_length=20)] = {}
    series: Annotated[list[SeveralBody], Field(max_length=4)] = []


Tag = Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[^\s,](?:[^,\n]*[^\s,])?$")]


class TagsBody(Strict):
    """All tags of a run. None holds a comma: lists of tags are written with commas."""

    tags: Annotated[list[Tag], Field(max_length=20)]


class WhyBody(Strict):
    """A reason, for the audit log."""

    why: Text = ""


class TokenBody(Strict):
    """A new token."""

    role: Literal["viewer", "operator", "admin", "agent"]
    node: str | None = None
    name: str | None = None
    expires_in_s: Annotated[float, Field(gt=0, le=10 * 365 * 86_400)] | None = None


class CodeBody(Strict):
    """A login code."""

    code: Annotated[str, Field(max_length=500)]
