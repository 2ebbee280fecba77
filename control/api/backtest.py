"""Rules tried on history: on runs by their stored points, and on CSVs. Stores nothing."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Annotated, Any, Self

from fastapi import APIRouter
from pydantic import Field, model_validator
from starlette.responses import Response

from control.api.answers import Answer
from control.api.context import Shell, WithShell
from control.api.door import DoorRoute
from control.db import rulebook
from control.db.series import past
from control.db.series.curves import curve
from control.rules import sheet
from control.rules.backtest import backtest, failed_tests, metrics_of
from control.rules.history import History
from trainmaster import document
from trainmaster.document import Document
from trainmaster.errors import NotFoundError, Problem, SpecError, UnavailableError
from trainmaster.plan import Strict
from trainmaster.rule import Rule, RuleFile

router = APIRouter(prefix="/v1", route_class=DoorRoute, tags=["rules"])

MAX_SOURCES = 100

_SEATS = threading.Semaphore(2)
"""A back-test computes all the time, and turns of runs must go on beside it."""


class Csv(Strict):
    """A CSV with a header; `name` is told with its findings."""

    name: Annotated[str, Field(min_length=1, max_length=500)]
    text: str


class BacktestBody(Strict):
    """`rules`: the name of a pack or of a rule, or rules as in a rule file; or `text`, a rule file.
    Tried on `runs` and on `csv`. With `curves` each source tells what the first rule looked at.
    """

    rules: str | list[dict[str, Any]] | None = None
    text: str | None = None
    runs: Annotated[list[str], Field(max_length=MAX_SOURCES)] = []
    csv: Annotated[list[Csv], Field(max_length=MAX_SOURCES)] = []
    curves: bool = False

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.rules is not None and self.text is not None:
            raise ValueError("give either rules or text")
        if not self.runs and not self.csv:
            raise ValueError("give runs or csv: something to try the rules on")
        return self


class TestBody(Strict):
    """A rule file with tests."""

    text: str


@router.post("/backtest")
def try_rules(body: BacktestBody, shell: WithShell) -> Response:
    """Tell where rules would have fired, and what they would have done."""
    if not _SEATS.acquire(blocking=False):
        raise UnavailableError("two back-tests are under way already: try again")
    try:
        return Answer(_findings(body, shell))
    finally:
        _SEATS.release()


@router.post("/rules/test")
def test_rules(body: TestBody) -> Response:
    """Run the tests of a rule file."""
    source = document.read(body.text)
    file = document.validate(RuleFile, source)
    return Answer({"tests": len(file.tests), "failed": failed_tests(file)})


def _findings(body: BacktestBody, shell: Shell) -> list[dict[str, Any]]:
    rules = _rules(body, shell)
    metrics = metrics_of(rules)
    found = []
    for run in body.runs:
        with shell.db.read() as connection:
            history = past.history(connection, run, metrics)
        found.append(_told(body, rules, history))
    for each in body.csv:
        histories = sheet.read(each.name, each.text.splitlines(keepends=True), metrics)
        found += [_told(body, rules, history) for history in histories]
    return found


def _told(body: BacktestBody, rules: Sequence[Rule], history: History) -> dict[str, Any]:
    found = backtest(rules, history)
    if body.curves:
        found["curve"] = curve(rules[0], history)
    return found


def _rules(body: BacktestBody, shell: Shell) -> Sequence[Rule]:
    if body.text is not None:
        return document.parse(RuleFile, body.text).rules
    if isinstance(body.rules, list):
        return document.validate(RuleFile, Document({"rules": body.rules})).rules
    asked = body.rules or rulebook.DEFAULT_PACK
    with shell.db.read() as connection:
        rules = rulebook.active(connection, asked)
        unknown = rulebook.unknown(connection, asked)
    if unknown:
        raise NotFoundError(f"there is no rule or pack named {asked!r}")
    if not rules:
        raise SpecError([Problem("rules", f"{asked!r} holds no rule that is enabled")])
    return rules
