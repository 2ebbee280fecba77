"""Rules: a named judgement on a metric, and what to do about it. The same model in SQL, in files
and on the wire.

Conditions and actions are closed sets, so that what a rule can do to a run is known before it is
trusted.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from trainmaster.ids import name_problem
from trainmaster.plan import Strict
from trainmaster.spec import MAX_STEPS

Mode = Literal["observe", "act"]
Severity = Literal["info", "warning", "critical"]
AlertState = Literal["inactive", "pending", "firing", "resolved"]
ScopeName = Literal["run", "replica", "stage", "rank", "node", "link"]


class Above(Strict):
    """Bad while the value is greater than `value`."""

    condition: Literal["above"]
    value: float


class Below(Strict):
    """Bad while the value is less than `value`."""

    condition: Literal["below"]
    value: float


class NonFinite(Strict):
    """Bad while the value is NaN or infinite."""

    condition: Literal["non_finite"]


Condition = Annotated[Above | Below | NonFinite, Field(discriminator="condition")]


class For(Strict):
    """How long: `steps` bad steps, in a row or among the last `within`; or a bad stretch of
    `seconds`.
    """

    steps: Annotated[int, Field(ge=1, le=100_000)] | None = None
    within: Annotated[int, Field(ge=1, le=100_000)] | None = None
    seconds: Annotated[float, Field(gt=0, le=7 * 86400)] | None = None

    @model_validator(mode="after")
    def _one_measure(self) -> Self:
        if (self.steps is None) == (self.seconds is None):
            raise ValueError("give either steps (optionally within) or seconds")
        if self.within is not None and (self.steps is None or self.within < self.steps):
            raise ValueError("within needs steps, and at least as many")
        return self


class Rollback(Strict):
    """Go back to the newest trusted checkpoint before the first bad step, and change something.

    What changes: the batches of the bad steps are skipped (`skip`), the learning rate is
    multiplied by `lr_factor` for `lr_factor_steps` steps, or both.
    """

    action: Literal["rollback"]
    skip: bool = True
    lr_factor: Annotated[float, Field(gt=0, lt=1)] | None = None
    lr_factor_steps: Annotated[int, Field(ge=1, le=MAX_STEPS)] = 100

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not self.skip and self.lr_factor is None:
            raise ValueError(
                "must change something: the same state, data and draws give the same trouble again"
            )
        return self


class TakeCheckpoint(Strict):
    """Take a checkpoint now."""

    action: Literal["checkpoint"]


class Hold(Strict):
    """Keep the ranks waiting at a step boundary until a person decides."""

    action: Literal["hold"]


class Stop(Strict):
    """Checkpoint and stop."""

    action: Literal["stop"]


Action = Annotated[Rollback | TakeCheckpoint | Hold | Stop, Field(discriminator="action")]

DESTRUCTIVE_ACTIONS: frozenset[str] = frozenset({"rollback", "stop"})


class Rule(Strict):
    """A rule. `actions` is its ladder: one rung per incident so far, the last one repeated, within
    `max_actions`.
    """

    name: str
    metric: str
    scope: ScopeName = "run"
    when: Condition
    for_: Annotated[For, Field(alias="for")] = For(steps=1)
    severity: Severity = "warning"
    mode: Mode = "observe"
    actions: list[Action] = []
    cooldown_s: Annotated[float, Field(ge=0, le=365 * 86400)] = 0.0
    max_actions: Annotated[int, Field(ge=1, le=1000)] = 3
    enabled: bool = True
    description: Annotated[str, Field(max_length=2000)] = ""

    @field_validator("name")
    @classmethod
    def _fit_to_show(cls, name: str) -> str:
        problem = name_problem(name)
        if problem:
            raise ValueError(problem)
        return name

    def to_json(self) -> dict[str, Any]:
        """Return the rule as in a rule file."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class RuleTest(Strict):
    """A test in a rule file: these values from step 1 on; at which step must the rule fire, if at
    all.
    """

    rule: str
    series: dict[str, list[float | str | None]]
    expect: dict[str, int | None]


class RuleFile(Strict):
    """A file of rules and their tests."""

    rules: Annotated[list[Rule], Field(min_length=1)]
    tests: list[RuleTest] = []

    @model_validator(mode="after")
    def _names_once(self) -> Self:
        names = [rule.name for rule in self.rules]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"more than one rule is named {', '.join(twice)}")
        return self
