"""Tries rules on history: where they would have fired, and what they would have done. Pure; the
same code that runs live.

History is taken as it was: a rollback would have changed what followed, so what a rule would have
done after its first action is a bound, not a prophecy. Updates that were not finite count as
skipped, as the ranks would have done. A firing that comes within a probation of the one before
climbs to the next rung; what heals within a rule's patience is left alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from control.rules import actions
from control.rules.derived import sources_of
from control.rules.evaluate import Watch
from control.rules.frame import column_of
from control.rules.history import History, history_of
from control.rules.judgement import RUN, Firing, Judgement
from control.rules.names import columns_of
from trainmaster.actions import DESTRUCTIVE_ACTIONS, PlainAction, Situation, chosen
from trainmaster.rule import Measured, Rule, RuleFile

PROBATION_STEPS = 20
"""A firing so soon after the one before belongs to the same incident."""


def backtest(rules: Iterable[Rule], history: History) -> dict[str, Any]:
    """Return the findings of `rules` on one source, as the command `backtest` prints them."""
    findings: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    for rule in rules:
        why_not = history.why_not(rule)
        if why_not is not None:
            left_out[rule.name] = why_not
            continue
        for judgement in _judgements(rule, history):
            findings += _findings(judgement, last_step=int(history.steps[-1]))
    findings.sort(key=lambda each: (each["fired_step"], each["rule"], each["scope"]))
    count = len(history)
    return {
        "source": history.name,
        "steps": count,
        "findings": findings,
        "destructive": sum(each["action"] in DESTRUCTIVE_ACTIONS for each in findings),
        "per_10k_steps": len(findings) * 10_000 / count if count else 0.0,
        "not_applicable": sorted(left_out),
        "not_applicable_because": left_out,
        "notes": list(history.notes),
    }


def metrics_of(rules: Iterable[Rule]) -> tuple[str, ...]:
    """Return what a source should tell of, for `rules` to be tried on it."""
    named = [metric for rule in rules for metric in rule.metrics]
    # What the ranks would have skipped is seen in loss and gradient norm.
    guarded = ("loss", "grad_norm") if "applied" in named else ()
    return tuple(dict.fromkeys((*named, *sources_of(named), *guarded)))


def failed_tests(file: RuleFile) -> list[str]:
    """Return what is wrong with the expectations of a rule file's own tests, a sentence each."""
    rules = {rule.name: rule for rule in file.rules}
    found = []
    for number, test in enumerate(file.tests, 1):
        rule = rules.get(test.rule)
        if rule is None:
            found.append(f"test {number}: there is no rule {test.rule!r} in this file")
            continue
        history = _of_series(test.series)
        why_not = history.why_not(rule.model_copy(update={"enabled": True}))
        if why_not is not None:
            found.append(f"test {number}: {rule.name!r} cannot be tried: {why_not}")
            continue
        steps = [
            firing.fired_step
            for judgement in _judgements(rule, history)
            for firing in judgement.firings
        ]
        fired, expected = min(steps, default=None), test.expect.fired_step
        if fired != expected:
            found.append(f"test {number}: {rule.name!r} fired at {fired}, expected at {expected}")
    return found


def _of_series(series: Mapping[str, Sequence[Measured]]) -> History:
    """Return the series of a test as a history, its steps a second apart."""
    length = max(len(values) for values in series.values())
    numbers = {
        name: [_number(value) for value in values] + [None] * (length - len(values))
        for name, values in series.items()
    }
    table = columns_of({name: column_of(values) for name, values in numbers.items()})
    return history_of(
        "test",
        range(1, length + 1),
        table.of_run,
        at=range(length),
        of_ranks=table.of_ranks,
        seats=table.seats,
    )


def _judgements(rule: Rule, history: History) -> tuple[Judgement, ...]:
    if not len(history):
        return ()
    frame = history.frame(rule)
    watch = Watch(rule, frame.members, max_firings=None)
    watch.take(frame)
    return watch.judgements


def _findings(judgement: Judgement, *, last_step: int) -> list[dict[str, Any]]:
    found = []
    taken: list[str] = []
    over_at = -math.inf
    for firing in judgement.firings:
        if firing.first_bad_step > over_at + PROBATION_STEPS:
            taken = []
        finding, action = _finding(judgement, firing, taken, last_step)
        if action is not None:
            taken.append(action)
        over_at = math.inf if firing.resolved_step is None else firing.resolved_step
        found.append(finding)
    return found


def _finding(
    judgement: Judgement, firing: Firing, taken: Sequence[str], last_step: int
) -> tuple[dict[str, Any], str | None]:
    rule = judgement.rule
    action = _action(judgement, firing, taken)
    told, name = "it would only warn", None
    if action is not None and rule.mode == "ask":
        told = f"it would ask whether to {actions.describe(action)}"
    elif action is not None and rule.mode == "act":
        told, name = _acted(rule, firing, action, last_step)
    of_what = "" if judgement.scope == RUN else f" of {judgement.scope}"
    finding = {
        "rule": rule.name,
        "scope": judgement.scope,
        "first_bad_step": firing.first_bad_step,
        "fired_step": firing.fired_step,
        "resolved_step": firing.resolved_step,
        "severity": rule.severity,
        "action": name,
        "because": f"{rule.metric}{of_what} was bad ({rule.when.condition}) since step "
        f"{firing.first_bad_step}; {told}.",
    }
    return finding, name


def _acted(
    rule: Rule, firing: Firing, action: PlainAction, last_step: int
) -> tuple[str, str | None]:
    due = firing.fired_step + rule.patience_steps
    if firing.resolved_step is not None and firing.resolved_step <= due:
        return f"it healed by itself within {rule.patience_steps} steps", None
    if due > last_step:
        return f"its patience of {rule.patience_steps} steps was not over at the end", None
    return f"it would {actions.describe(action)}", action.action


def _action(judgement: Judgement, firing: Firing, taken: Sequence[str]) -> PlainAction | None:
    if judgement.rule.mode == "observe":
        return None
    action = actions.next_action(judgement.rule, len(taken))
    if action is None:
        return None
    situation = Situation(
        judgement.rule.name,
        judgement.rule.metric,
        judgement.scope,
        judgement.value,
        firing.first_bad_step,
        firing.fired_step,
        tuple(taken),
    )
    return chosen(action, situation)


def _number(value: Measured) -> float | None:
    """Return a value of a test's series: text is "NaN", "Infinity" or "-Infinity"; empty text was
    not measured.
    """
    if not isinstance(value, str):
        return value
    text = value.strip()
    return float(text) if text else None
