"""`python -m control.tryout`: rules tried on CSVs, and the tests of a rule file, without a control
plane.

Reads one JSON document on stdin, `{"rules": TEXT or null, "pack": NAME or null, "sources":
[{"name": NAME, "path": PATH}...]}` or `{"test": TEXT}`, and writes one: for each source the
findings of its histories, or the sentences about tests that failed, or `{"code", "problems":
[{"path", "message", "line", "source"}]}` with exit status 2.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from control.rules import packs, sheet
from control.rules.backtest import backtest, failed_tests, metrics_of
from trainmaster.document import parse
from trainmaster.errors import Problem, SpecError, UserError
from trainmaster.plugins import add_rule_parts
from trainmaster.rule import Rule, RuleFile


class _SourceError(Exception):
    """What is wrong with one of the sources."""

    def __init__(self, source: str, what: SpecError) -> None:
        super().__init__(source)
        self.source = source
        self.what = what


def main(source: TextIO, target: TextIO) -> int:
    """Answer one question; return the exit status."""
    status, told = 0, None
    add_rule_parts()
    try:
        asked = json.load(source)
        told = _tested(asked["test"]) if "test" in asked else _tried(asked)
    except _SourceError as error:
        told, status = refusal(error.what, error.source), 2
    except SpecError as error:
        told, status = refusal(error, ""), 2
    except UserError as error:
        told, status = refusal(SpecError([Problem("", error.message)]), ""), 2
    json.dump(told, target, allow_nan=False)
    target.write("\n")
    return status


def _tested(text: str) -> Any:
    file = parse(RuleFile, text)
    return {"tests": len(file.tests), "failed": failed_tests(file)}


def _tried(asked: dict[str, Any]) -> Any:
    if asked.get("rules") is not None:
        rules: Sequence[Rule] = parse(RuleFile, asked["rules"]).rules
    else:
        rules = packs.load(asked["pack"])
    metrics = metrics_of(rules)
    found = []
    for source in asked["sources"]:
        name = source["name"]
        try:
            with Path(source["path"]).open(encoding="utf-8-sig", newline="") as lines:
                histories = sheet.read(name, lines, metrics)
        except SpecError as error:
            raise _SourceError(name, error) from error
        except (OSError, UnicodeDecodeError) as error:
            what = SpecError([Problem("", f"cannot be read: {error}")])
            raise _SourceError(name, what) from error
        found.append([backtest(rules, history) for history in histories])
    return found


def refusal(error: SpecError, source: str) -> dict[str, Any]:
    """Return a refusal as plain values."""
    return {
        "code": error.code,
        "problems": [
            {"path": each.path, "message": each.message, "line": each.line, "source": source}
            for each in error.problems
        ],
    }


if __name__ == "__main__":
    sys.exit(main(sys.stdin, sys.stdout))
