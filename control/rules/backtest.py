"""Tries rules on history: where they would have fired, and what they would have done. Pure; the
same fold that runs live.

History is taken as it was: a rollback would have changed what followed, so what a rule would have
done after its first action is a bound, not a prophecy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from control.rules import actions
from control.rules.conditions import threshold
from control.rules.evaluate import Firing, evaluate, not_applicable
from control.snapshot import Sample
from trainmaster.rule import DESTRUCTIVE_ACTIONS, Action, Rule, RuleFile

Columns = Mapping[str, Sequence[float | None]]
"""Metric -> one value per step: None where it was not measured, NaN where it was and is not a
number.
"""


def backtest(
    rules: Iterable[Rule],
    columns: Columns,
    *,
    source: str,
    steps: Sequence[int] | None = None,
    at_s: Sequence[float] | None = None,
) -> dict[str, Any]:
    """Return the findings of `rules` on one source, as the command `backtest` prints them.

    Args:
        columns: of equal length.
        source: a run's id or a file's name, to be told.
        steps: the number of each row's step, ascending; 1, 2, ... when None.
        at_s: when each step ended, in seconds; None when the source does not tell.
    """
    num_rows = max((len(values) for values in columns.values()), default=0)
    steps = steps if steps is not None else range(1, num_rows + 1)
    findings: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    for rule in rules:
        why_not = _why_not(rule, columns, has_time=at_s is not None)
        if why_not is not None:
            left_out[rule.name] = why_not
            continue
        samples = _samples(steps, columns[rule.metric], at_s)
        firings = evaluate(rule, samples).firings
        findings += [_finding(rule, firing, number) for number, firing in enumerate(firings)]
    findings.sort(key=lambda finding: (finding["fired_step"], finding["rule"]))
    return {
        "source": source,
        "steps": num_rows,
        "findings": findings,
        "destructive": sum(finding["action"] in DESTRUCTIVE_ACTIONS for finding in findings),
        "per_10k_steps": len(findings) * 10_000 / num_rows if num_rows else 0.0,
        "not_applicable": sorted(left_out),
        "not_applicable_because": left_out,
    }


def failed_tests(file: RuleFile) -> list[str]:
    """Return what is wrong with the expectations of a rule file's own tests, a sentence each."""
    rules = {rule.name: rule for rule in file.rules}
    found = []
    for number, test in enumerate(file.tests, 1):
        rule = rules.get(test.rule)
        if rule is None:
            found.append(f"test {number}: there is no rule {test.rule!r} in this file")
            continue
        series = test.series.get(rule.metric)
        if series is None:
            found.append(
                f"test {number}: gives no series of {rule.metric}, which {rule.name!r} watches"
            )
            continue
        samples = _samples(range(1, len(series) + 1), [_number(value) for value in series], None)
        firings = evaluate(rule, samples).firings
        fired = firings[0].fired_step if firings else None
        expected = test.expect.get("fired_step")
        if fired != expected:
            found.append(f"test {number}: {rule.name!r} fired at {fired}, expected at {expected}")
    return found


def _why_not(rule: Rule, columns: Columns, *, has_time: bool) -> str | None:
    if rule.metric not in columns:
        return f"The source has no {rule.metric}."
    if rule.for_.seconds is not None and not has_time:
        return "It is in seconds, and the source tells no time."
    return not_applicable(rule)


def _samples(
    steps: Sequence[int], values: Sequence[float | None], at_s: Sequence[float] | None
) -> list[Sample]:
    """Return rows as samples; without times they stand a second apart, which only rules in seconds
    would notice.
    """
    instants = at_s if at_s is not None else range(len(values))
    return [
        Sample(0, step, datetime.fromtimestamp(at, UTC), value)
        for step, at, value in zip(steps, instants, values, strict=True)
    ]


def _finding(rule: Rule, firing: Firing, number: int) -> dict[str, Any]:
    action = actions.next_action(rule, number) if rule.mode == "act" else None
    bar = threshold(rule.when)
    compared = f"{rule.when.condition} {bar:g}" if bar is not None else "not finite"
    did = actions.describe(action) if action is not None else "only warn"
    return {
        "rule": rule.name,
        "first_bad_step": firing.first_bad_step,
        "fired_step": firing.fired_step,
        "resolved_step": firing.resolved_step,
        "severity": rule.severity,
        "action": _name(action),
        "because": f"{rule.metric} was {compared} since step {firing.first_bad_step}; "
        f"it would {did}.",
    }


def _name(action: Action | None) -> str | None:
    return action.action if action is not None else None


def _number(value: float | str | None) -> float | None:
    """Return a value of a test's series: text is "NaN", "Infinity" or "-Infinity"; empty text was
    not measured.
    """
    if not isinstance(value, str):
        return value
    text = value.strip()
    return float(text) if text else None
