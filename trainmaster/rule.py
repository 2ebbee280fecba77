"""Rules: a named judgement on a metric, and what to do about it. The same model in SQL, in files
and on the wire.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from trainmaster import document
from trainmaster.actions import Action
from trainmaster.conditions import MAX_NESTED, MAX_PARTS, Condition, Leaf, depth, parts_of
from trainmaster.document import Document
from trainmaster.errors import Problem, SpecError
from trainmaster.ids import name_problem
from trainmaster.metrics import BY_NAME, DERIVED, RATIOS
from trainmaster.plan import Natural, Strict

Mode = Literal["observe", "ask", "act"]
Severity = Literal["info", "warning", "critical"]
AlertState = Literal["inactive", "pending", "firing", "resolved"]
ScopeName = Literal["run", "replica", "stage", "rank", "node", "link"]


MAX_RULES = 1000
"""In one file: nobody else's word is stored while a file's rules are."""


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


class Ask(Strict):
    """How long a rule in `ask` mode waits for an answer, and what happens without one: nothing
    (`dismiss`), or the action (`act`).
    """

    deadline_s: Annotated[float, Field(gt=0, le=30 * 86400)] = 3600.0
    then: Literal["dismiss", "act"] = "dismiss"


class Rule(Strict):
    """A rule. `actions` is its ladder: one rung per action that an incident has seen, the last one
    repeated, within `max_actions`.

    Attributes:
        unless: a condition; steps at which it is bad are not judged.
        patience_steps: an action waits until the rule has fired for so many steps more; what heals
            before is left alone.
        warmup_steps: the first steps of the run that are not judged, unless a value is not finite.
        settle_steps: the same after each beginning of an attempt.
        widens: what is bad on most ranks of a node, or on all nodes, is told once, of the node or
            of the run.
    """

    name: str
    metric: str
    scope: ScopeName = "run"
    when: Condition
    unless: Condition | None = None
    for_: Annotated[For, Field(alias="for")] = For(steps=1)
    severity: Severity = "warning"
    mode: Mode = "observe"
    ask: Ask = Ask()
    actions: list[Action] = []
    patience_steps: Annotated[int, Field(ge=0, le=100_000)] = 0
    cooldown_s: Annotated[float, Field(ge=0, le=365 * 86400)] = 0.0
    max_actions: Annotated[int, Field(ge=1, le=1000)] = 3
    warmup_steps: Natural = 0
    settle_steps: Annotated[int, Field(ge=0, le=10_000)] = 0
    widens: bool = False
    enabled: bool = True
    description: Annotated[str, Field(max_length=2000)] = ""

    @field_validator("name")
    @classmethod
    def _fit_to_show(cls, name: str) -> str:
        problem = name_problem(name)
        if problem:
            raise ValueError(problem)
        return name

    @field_validator("when", "unless")
    @classmethod
    def _bounded(cls, condition: Condition | None) -> Condition | None:
        if condition is not None and (
            depth(condition) > MAX_NESTED or len(list(parts_of(condition))) > MAX_PARTS
        ):
            raise ValueError(
                f"has more than {MAX_PARTS} parts, or is nested more than {MAX_NESTED} deep"
            )
        return condition

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        kinds = {part.condition for part in parts_of(self.when)}
        if self.scope == "run" and "relative_to_best_peer" in kinds:
            raise ValueError("relative_to_best_peer needs a scope with peers: rank, node, replica")
        if self.scope != "run" and "spread_over_replicas" in kinds:
            raise ValueError("spread_over_replicas is about the whole run: scope run")
        if self.widens and self.scope not in {"rank", "node"}:
            raise ValueError(f"widens is for rules on ranks or nodes, not on scope {self.scope}")
        if self.mode != "observe" and not self.actions:
            nothing = "to ask about" if self.mode == "ask" else "that it could do"
            raise ValueError(f"mode {self.mode} needs actions: there is nothing {nothing}")
        return self

    @property
    def parts(self) -> tuple[Leaf, ...]:
        """The conditions that look at values, of `when` and of `unless`."""
        conditions = [self.when, *([self.unless] if self.unless is not None else [])]
        return tuple(part for each in conditions for part in parts_of(each))

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that it looks at, its own first."""
        named = (part.metric for part in self.parts)
        return tuple(dict.fromkeys((self.metric, *(name for name in named if name is not None))))

    def to_json(self) -> dict[str, Any]:
        """Return the rule as in a rule file."""
        told = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        for name in ("ask", "patience_steps", "warmup_steps", "settle_steps", "widens"):
            if getattr(self, name) == type(self).model_fields[name].default:
                del told[name]
        return told


Measured = Annotated[float, Field(allow_inf_nan=True)] | str | None


class Expected(Strict):
    """What a test expects: the step at which the rule fires first; null for never."""

    fired_step: int | None


class RuleTest(Strict):
    """A test in a rule file: these values from step 1 on, a second apart; at which step must the
    rule fire, if at all. A value is a number, null (not measured), or "NaN", "Infinity",
    "-Infinity". `loss@rank=2` names the series of a rank.
    """

    rule: str
    series: Annotated[dict[str, list[Measured]], Field(min_length=1)]
    expect: Expected

    @field_validator("series")
    @classmethod
    def _numbers(cls, series: dict[str, list[Measured]]) -> dict[str, list[Measured]]:
        for metric, values in series.items():
            for number, value in enumerate(values, 1):
                if isinstance(value, str) and value.strip():
                    try:
                        float(value)
                    except ValueError:
                        raise ValueError(
                            f"value {number} of {metric} is {value!r}, not a number"
                        ) from None
        return series


class RuleFile(Strict):
    """A file of rules and their tests."""

    rules: Annotated[list[Rule], Field(min_length=1, max_length=MAX_RULES)]
    tests: Annotated[list[RuleTest], Field(max_length=MAX_RULES)] = []

    @model_validator(mode="after")
    def _names_once(self) -> Self:
        names = Counter(rule.name for rule in self.rules)
        twice = sorted(name for name, times in names.items() if times > 1)
        if twice:
            raise ValueError(f"more than one rule is named {', '.join(twice)}")
        return self


def of_measured(source: Document) -> list[Rule]:
    """Return the rules of a file, all of which look at metrics that Trainmaster measures. (On a CSV
    a rule may look at any.)

    Raises:
        SpecError: all problems, those of metrics and of the rest at once.
    """
    try:
        rules = document.validate(RuleFile, source).rules
    except SpecError as error:
        problems = [*error.problems, *_unknown(_metrics_in(source.value))]
        raise document.with_lines(SpecError(problems), source) from error
    problems = _unknown(enumerate(rule.metrics for rule in rules))
    if problems:
        raise document.with_lines(SpecError(problems), source)
    return rules


def metric_problem(metrics: Iterable[str]) -> str | None:
    """Return what is wrong with the metrics of a rule, as a sentence; None if all are measured."""
    known = (*BY_NAME, *DERIVED, *RATIOS)
    unknown = [metric for metric in metrics if metric not in known]
    if not unknown:
        return None
    return f"{', '.join(map(repr, unknown))} is not a metric; there are {', '.join(known)}"


def _metrics_in(file: Any) -> Iterable[tuple[int, tuple[str, ...]]]:
    """Yield the place and the metric of each rule of a file that reads well enough to have one."""
    rules = file.get("rules") if isinstance(file, Mapping) else None
    for position, rule in enumerate(rules if isinstance(rules, list) else ()):
        if isinstance(rule, Mapping) and isinstance(rule.get("metric"), str):
            yield position, (rule["metric"],)


def _unknown(told: Iterable[tuple[int, Iterable[str]]]) -> list[Problem]:
    return [
        Problem(f"rules[{position}].metric", problem)
        for position, metrics in told
        if (problem := metric_problem(metrics)) is not None
    ]
