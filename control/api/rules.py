"""Rules: seen, added, edited, switched and removed while runs are live; every version is kept."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from control.api.answers import Answer
from control.api.bodies import Text
from control.api.context import ByCaller, Shell, WithShell
from control.api.door import DoorRoute
from control.db import rulebook
from control.incidents.rungs import CARRIERS
from control.rights import Caller
from control.rules.members import needs_ranks
from trainmaster import document
from trainmaster.document import Document, set_path
from trainmaster.errors import Problem, SpecError
from trainmaster.ids import name_problem
from trainmaster.metrics import DERIVED
from trainmaster.plan import Strict
from trainmaster.rule import Rule, metric_problem, of_measured

router = APIRouter(prefix="/v1/rules", route_class=DoorRoute, tags=["rules"])

_TOLD = frozenset({"version", "pack", "changed_at", "changed_by"})
"""What the API adds to a rule when it shows it; a rule that is sent back may carry it."""


class AddBody(Strict):
    """Rules as in a rule file: as YAML, or as values."""

    rules: list[dict[str, Any]] | None = None
    tests: list[dict[str, Any]] = []
    text: str | None = None
    pack: str = rulebook.DEFAULT_PACK
    why: Text = ""


class EditBody(Strict):
    """Values to set by their dotted path."""

    set_: dict[str, Any] = Field(alias="set", min_length=1)
    expected_version: int | None = None
    why: Text = ""


@router.get("")
def list_rules(shell: WithShell) -> Response:
    """List all rules, oldest first."""
    with shell.db.read() as connection:
        return Answer(rulebook.all_rules(connection))


@router.get("/{name}")
def get_rule(name: str, shell: WithShell) -> Response:
    """Show one rule."""
    with shell.db.read() as connection:
        return Answer(rulebook.one(connection, name))


@router.get("/{name}/history")
def get_history(name: str, shell: WithShell) -> Response:
    """List all versions of a rule, oldest first, removed ones included."""
    with shell.db.read() as connection:
        return Answer(rulebook.versions(connection, name))


@router.post("")
def add_rules(body: AddBody, shell: WithShell, caller: ByCaller) -> Response:
    """Add rules: all of them, or none."""
    if (body.rules is None) == (body.text is None):
        raise SpecError([Problem("rules", "give either rules or text")])
    problem = name_problem(body.pack)
    if problem is not None:
        raise SpecError([Problem("pack", problem)])
    source = (
        document.read(body.text)
        if body.text is not None
        else Document({"rules": body.rules, "tests": body.tests})
    )
    rules = of_measured(source)
    problems = [
        Problem(f"rules[{position}].metric", problem)
        for position, rule in enumerate(rules)
        if (problem := _problem_of(rule)) is not None
    ]
    problems += [
        Problem(f"rules[{position}].{each.path}", each.message)
        for position, rule in enumerate(rules)
        for each in _action_problems(rule)
    ]
    if problems:
        raise document.with_lines(SpecError(problems), source)
    now = shell.clock.now()
    with shell.db.write() as connection:
        added = rulebook.add(
            connection, rules, pack=body.pack, actor=caller.actor, why=body.why, now=now
        )
    shell.wake()
    return Answer(added, status_code=201)


@router.put("/{name}")
def put_rule(name: str, body: dict[str, Any], shell: WithShell, caller: ByCaller) -> Response:
    """Replace a rule by a whole one. A `version` in it is the one that was seen."""
    version = body.get("version")
    if version is not None and not isinstance(version, int):
        raise SpecError([Problem("version", "must be a number")])
    bare = {key: value for key, value in body.items() if key not in _TOLD}
    return _replaced(shell, caller, name, bare, version, "edited", "")


@router.patch("/{name}")
def patch_rule(name: str, body: EditBody, shell: WithShell, caller: ByCaller) -> Response:
    """Set some values of a rule."""
    with shell.db.read() as connection:
        shown = rulebook.one(connection, name)
    bare = {key: value for key, value in shown.items() if key not in _TOLD}
    for path, value in body.set_.items():
        set_path(bare, path, value)
    version = body.expected_version if body.expected_version is not None else shown["version"]
    return _replaced(shell, caller, name, bare, version, "edited", body.why)


@router.post("/{name}/enable")
def enable_rule(name: str, shell: WithShell, caller: ByCaller) -> Response:
    """Let a rule judge again."""
    return _switched(shell, caller, name, enabled=True)


@router.post("/{name}/disable")
def disable_rule(name: str, shell: WithShell, caller: ByCaller) -> Response:
    """Keep a rule from judging."""
    return _switched(shell, caller, name, enabled=False)


@router.delete("/{name}")
def remove_rule(name: str, shell: WithShell, caller: ByCaller) -> Response:
    """Take a rule out of use; its versions stay."""
    with shell.db.write() as connection:
        rulebook.remove(connection, name, actor=caller.actor, why="", now=shell.clock.now())
    shell.wake()
    return Response(status_code=204)


def _switched(shell: Shell, caller: Caller, name: str, *, enabled: bool) -> Response:
    with shell.db.read() as connection:
        shown = rulebook.one(connection, name)
    bare = {key: value for key, value in shown.items() if key not in _TOLD}
    change = "enabled" if enabled else "disabled"
    return _replaced(
        shell, caller, name, {**bare, "enabled": enabled}, shown["version"], change, ""
    )


def _replaced(
    shell: Shell,
    caller: Caller,
    name: str,
    bare: dict[str, Any],
    version: int | None,
    change: str,
    why: str,
) -> Response:
    rule = document.validate(Rule, Document(bare))
    if rule.name != name:
        raise SpecError(
            [Problem("name", f"cannot be changed from {name!r}: add another rule instead")]
        )
    problem = _problem_of(rule)
    problems = [*([Problem("metric", problem)] if problem else []), *_action_problems(rule)]
    if problems:
        raise SpecError(problems)
    with shell.db.write() as connection:
        stored = rulebook.replace(
            connection,
            name,
            rule,
            expected_version=version,
            change=change,
            actor=caller.actor,
            why=why,
            now=shell.clock.now(),
        )
    shell.wake()
    return Answer(stored)


def _problem_of(rule: Rule) -> str | None:
    """Return what keeps a rule that reads well from being taken up here, or None."""
    problem = metric_problem(rule.metrics)
    if problem is not None:
        return problem
    by_run = [metric for metric in rule.metrics if metric in DERIVED]
    if by_run and needs_ranks(rule):
        return f"{', '.join(by_run)} is of the whole run; the scope {rule.scope} needs one by rank"
    return None


def _action_problems(rule: Rule) -> list[Problem]:
    return [
        Problem(f"actions[{position}]", f"{action.action!r} is not carried out in this version")
        for position, action in enumerate(rule.actions)
        if action.action != "choose" and action.action not in CARRIERS
    ]
