"""`trainmaster rules`: rules in SQL, seen and edited while runs are live."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from trainmaster.cli.documents import apply_settings, problems_in, read_document
from trainmaster.cli.read import AsJson
from trainmaster.cli.session import Session, segment, session_of
from trainmaster.errors import SpecError, UserError

app = typer.Typer(help="See and edit the rules.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The rule's name.")]
RuleFile = Annotated[str, typer.Argument(metavar="FILE", help="A rule file in YAML.")]


@app.command("list")
def list_rules(context: typer.Context, as_json: AsJson = False) -> None:
    """List the rules, oldest first."""
    session = session_of(context)
    found = session.api.get("/v1/rules")
    if as_json:
        session.output.json(found)
        return
    session.output.table(
        ["RULE", "METRIC", "WHEN", "FOR", "SEVERITY", "MODE", "ACTIONS", "ENABLED"],
        [
            [
                rule["name"],
                rule["metric"],
                _when(rule),
                rule.get("for") or "-",
                rule.get("severity"),
                rule.get("mode"),
                ", ".join(action["action"] for action in rule.get("actions") or []) or "-",
                rule.get("enabled", True),
            ]
            for rule in found
        ],
        "There are no rules.",
    )


def _when(rule: dict[str, Any]) -> str:
    when = dict(rule["when"])
    return " ".join([when.pop("condition"), *(f"{key}={value}" for key, value in when.items())])


@app.command("show")
def show_rule(context: typer.Context, name: Name, as_json: AsJson = False) -> None:
    """Show one rule, as it stands in a rule file."""
    session = session_of(context)
    found = session.api.get(_path(name))
    if as_json:
        session.output.json(found)
        return
    import yaml

    session.output.line(yaml.safe_dump(found, sort_keys=False, allow_unicode=True).rstrip())


@app.command("add")
def add_rules(context: typer.Context, file: RuleFile, as_json: AsJson = False) -> None:
    """Add the rules in a file."""
    session = session_of(context)
    from trainmaster.rule import of_measured

    located = read_document(file)
    with problems_in(file, located):
        rules = of_measured(located)
        added = session.api.post("/v1/rules", {"rules": [rule.to_json() for rule in rules]})
    if as_json:
        session.output.json(added)
    else:
        session.output.line(f"Added {', '.join(rule.name for rule in rules)}.")


@app.command("edit")
def edit_rule(
    context: typer.Context,
    name: Name,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY.PATH=YAMLVALUE", help="Change one value of the rule."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change values of a rule; active within a second, in live runs too."""
    if not sets:
        raise UserError("nothing to change: give --set key=value, e.g. --set mode=observe")
    session = session_of(context)
    changed = dict(session.api.get(_path(name)))
    apply_settings(changed, sets)
    try:
        # The version that was read goes back with it, so that two who edit at once do not undo
        # each other unseen.
        stored = session.api.put(_path(name), changed)
    except SpecError as error:
        raise UserError(
            "\n".join(f"rule {name}: {problem}" for problem in error.problems), code=error.code
        ) from error
    _tell(session, name, stored, as_json=as_json)


@app.command("remove")
def remove_rule(context: typer.Context, name: Name) -> None:
    """Remove a rule."""
    session = session_of(context)
    session.api.delete(_path(name))
    session.output.line(f"Removed {name}.")


@app.command("enable")
def enable_rule(context: typer.Context, name: Name, as_json: AsJson = False) -> None:
    """Let a rule judge again."""
    _switch(context, name, "enable", as_json=as_json)


@app.command("disable")
def disable_rule(context: typer.Context, name: Name, as_json: AsJson = False) -> None:
    """Keep a rule from judging."""
    _switch(context, name, "disable", as_json=as_json)


def _switch(context: typer.Context, name: str, verb: str, *, as_json: bool) -> None:
    session = session_of(context)
    stored = session.api.post(f"{_path(name)}/{verb}")
    _tell(session, name, stored, as_json=as_json)


def _tell(session: Session, name: str, stored: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        session.output.json(stored)
    else:
        session.output.line(f"{name} is changed; it takes effect within a second.")


def _path(name: str) -> str:
    return f"/v1/rules/{segment('rule', name)}"
