"""`trainmaster backtest` and `trainmaster rules test`: rules on history, and on their own tests.

CSVs and rule files need no control plane where its code is beside this command; runs do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from trainmaster.cli.beside import ask_beside, is_beside
from trainmaster.cli.documents import DocumentError, problems_in, read_text
from trainmaster.cli.read import AsJson
from trainmaster.cli.session import Session, session_of
from trainmaster.errors import Problem, TrainmasterError, UserError

SHIPPED_PACKS = ("default", "quiet")

Json = dict[str, Any]


class FailedTestsError(TrainmasterError):
    """A rule file whose tests do not come out as it expects."""

    code = "rule_tests_failed"
    exit_status = 1


def backtest(
    context: typer.Context,
    rules: Annotated[
        str, typer.Argument(metavar="RULES", help="default, the name of a pack, or a rule file.")
    ],
    sources: Annotated[
        list[str], typer.Argument(metavar="SOURCE...", help="Runs, and CSVs with a header.")
    ],
    as_json: AsJson = False,
) -> None:
    """Try rules on history: where they would have fired, what they would have done."""
    session = session_of(context)
    files = [source for source in sources if _is_file(source)]
    runs = [source for source in sources if source not in files]
    found = _tried(session, rules, files, runs)
    in_order = [each for source in sources for each in found[source]]
    if as_json:
        session.output.json(in_order)
    else:
        for each in in_order:
            _tell(session, each)


def run_tests(
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A rule file in YAML.")],
    as_json: AsJson = False,
) -> None:
    """Run the tests in a rule file."""
    session = session_of(context)
    text = read_text(file)
    with problems_in(file):
        told = _here({"test": text}, file) if is_beside("tryout") else _asked_to_test(session, text)
    if as_json:
        session.output.json(told)
    elif not told["failed"]:
        session.output.line(f"{told['tests']} tests passed.")
    if told["failed"]:
        raise FailedTestsError("\n".join(f"{file}: {each}" for each in told["failed"]))


def _asked_to_test(session: Session, text: str) -> Json:
    told: Json = session.api.post("/v1/rules/test", {"text": text})
    return told


def _is_file(source: str) -> bool:
    looks_so = source.endswith(".csv") or "/" in source
    try:
        there = Path(source).is_file()
    except (OSError, ValueError):
        there = False
    if looks_so and not there:
        raise UserError(f"{source}: there is no such file")
    return there


def _tried(
    session: Session, rules: str, files: list[str], runs: list[str]
) -> dict[str, list[Json]]:
    """Return source -> what is told of it: of a file that holds several runs, something of each."""
    path = rules if Path(rules).is_file() else None
    if path is None and (rules.endswith((".yaml", ".yml")) or "/" in rules):
        raise UserError(f"{rules}: there is no such file")
    text = read_text(path) if path is not None else None
    found: dict[str, list[Json]] = {}
    local = files if is_beside("tryout") and (text is not None or rules in SHIPPED_PACKS) else []
    if local:
        named = [{"name": name, "path": str(Path(name).resolve())} for name in local]
        told: list[list[Json]] = _here({"rules": text, "pack": rules, "sources": named}, path)
        found |= dict(zip(local, told, strict=True))
    rest = [] if local else files
    if runs or rest:
        body: Json = {"text": text} if text is not None else {"rules": rules}
        body["runs"] = runs
        body["csv"] = [{"name": name, "text": read_text(name)} for name in rest]
        if path is not None:
            with problems_in(path):
                answer = session.api.post("/v1/backtest", body)
        else:
            answer = session.api.post("/v1/backtest", body)
        for source in (*runs, *rest):
            found[source] = [each for each in answer if _is_of(each["source"], source)]
    return found


def _is_of(told: str, source: str) -> bool:
    """Return whether findings are of `source`: one of several runs in a file is told behind it."""
    return told == source or told.startswith(f"{source} (")


def _here(asked: Json, rule_file: str | None) -> Any:
    """Try them beside this command.

    Raises:
        DocumentError: what is wrong with the rule file, or with a source.
    """
    told = ask_beside("tryout", asked, called="the back-test")
    if isinstance(told, dict) and "problems" in told:
        first = told["problems"][0]
        raise DocumentError(
            first["source"] or rule_file or "backtest",
            [Problem(each["path"], each["message"], each["line"]) for each in told["problems"]],
        )
    return told


def _tell(session: Session, found: Json) -> None:
    output = session.output
    output.line(
        f"{found['source']}: {found['steps']} steps, {len(found['findings'])} findings "
        f"({found['per_10k_steps']:.3g} per 10,000 steps), {found['destructive']} of them "
        "destructive."
    )
    for note in found["notes"]:
        output.line(note)
    output.table(
        ["RULE", "SCOPE", "FIRST BAD", "FIRED", "OVER", "SEVERITY", "ACTION", "BECAUSE"],
        [
            [
                each["rule"],
                each["scope"],
                each["first_bad_step"],
                each["fired_step"],
                each["resolved_step"] if each["resolved_step"] is not None else "-",
                each["severity"],
                each["action"] or "-",
                each["because"],
            ]
            for each in found["findings"]
        ],
        "No rule would have fired.",
    )
    if found["not_applicable"]:
        output.line(f"Not applicable: {', '.join(found['not_applicable'])}.")
    output.line()
