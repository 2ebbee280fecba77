"""Writes docs/rules/*.md: what each rule of a pack says, from its file, and why, from
docs/rules/why.yaml.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from control.rules import actions, packs
from trainmaster import document
from trainmaster.rule import Rule

WHY = Path(__file__).parents[1] / "docs" / "rules" / "why.yaml"
LEADS = {
    "default": "The rules of every run whose spec does not say otherwise.",
    "quiet": "For small experiments: what is certainly wrong, and nothing about speed. "
    "A spec asks for it with `rules: quiet`.",
}


def why() -> dict[str, dict[str, str]]:
    """Return rule -> its reasons."""
    found: dict[str, dict[str, str]] = document.read(WHY.read_text(encoding="utf-8")).value
    return found


def rules_page(pack: str) -> str:
    """Return the page of one pack."""
    rules = packs.load(pack)
    reasons = why()
    head = (
        f"# The {pack} pack\n\nWritten by `make docs` from `control/rules/packs/{pack}.yaml` and "
        f"`docs/rules/why.yaml`.\n\n{LEADS[pack]} The language of rules: "
        "[docs/rules.md](../rules.md).\n\n"
        "| rule | severity | mode | fires when |\n|---|---|---|---|\n"
    )
    rows = "".join(
        f"| [{rule.name}](#{rule.name.replace(' ', '-')}) | {rule.severity} | {rule.mode} | "
        f"{_flat(rule.description)} |\n"
        for rule in rules
    )
    return head + rows + "".join(_section(rule, reasons[rule.name]) for rule in rules)


def _section(rule: Rule, reasons: dict[str, str]) -> str:
    told = rule.to_json()
    lines = [
        f"\n## {rule.name}\n",
        f"- **Looks at** `{rule.metric}`, scope {rule.scope}.",
        f"- **Bad while** {_condition(told['when'])}.",
        *([f"- **Unless** {_condition(told['unless'])}."] if "unless" in told else []),
        f"- **For** {_plain(told['for'])}{_exempt(rule)}.",
        f"- **Does** {_does(rule)}",
        f"- **Why.** {_flat(reasons['why'])}",
        f"- **Evidence.** {_flat(reasons['evidence'])}",
        f"- **How to turn it.** {_flat(reasons['turn'])}",
    ]
    return "\n".join(lines) + "\n"


def _condition(told: dict[str, Any]) -> str:
    kind = told["condition"]
    if kind in {"all", "any"}:
        joined = f" {'and' if kind == 'all' else 'or'} ".join(
            _condition(part) for part in told["of"]
        )
        return f"({joined})"
    rest = {key: value for key, value in told.items() if key not in {"condition", "metric"}}
    of_what = f" of `{told['metric']}`" if "metric" in told else ""
    return f"`{kind}`{of_what}" + (f" ({_plain(rest)})" if rest else "")


def _plain(values: dict[str, Any]) -> str:
    return ", ".join(
        f"{key.replace('_', ' ')} {value:g}"
        if isinstance(value, float)
        else f"{key.replace('_', ' ')} {value}"
        for key, value in values.items()
    )


def _exempt(rule: Rule) -> str:
    found = []
    if rule.warmup_steps:
        found.append(f"the first {rule.warmup_steps} steps of the run are not judged")
    if rule.settle_steps:
        found.append(f"the first {rule.settle_steps} of an attempt are not judged")
    return f"; {', '.join(found)}" if found else ""


def _does(rule: Rule) -> str:
    if not rule.actions:
        return "warns: an alert."
    ladder = "; then ".join(actions.describe(each) for each in rule.actions)
    patience = (
        f" It waits {rule.patience_steps} steps first, and leaves alone what heals meanwhile."
        if rule.patience_steps
        else ""
    )
    return f"{ladder}; then the run stops and a person is asked.{patience}"


def _flat(text: str) -> str:
    return " ".join(text.split())
