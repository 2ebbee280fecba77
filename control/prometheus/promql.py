"""Rules as Prometheus says them: a second pair of eyes on the same thresholds. Pure.

Prometheus sees a scrape now and then, where the control plane sees every step. So what a rule says
about numbers of steps, about a run's own past, or about what was not measured cannot be said
exactly there, and is left out by name rather than said nearly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from trainmaster.conditions import Above, AllOf, AnyOf, Below, Condition, NonFinite
from trainmaster.metrics import BY_NAME, Metric
from trainmaster.rule import Rule

GROUP: Final = "trainmaster-rules"
RECORDED: Final = "trainmaster-runs"
_AGGREGATES: Final = {"same": "max", "mean": "avg", "sum": "sum", "max": "max", "min": "min"}
_LABELS: Final = {
    "run": ("run",),
    "replica": ("run", "replica"),
    "stage": ("run", "stage"),
    "rank": ("run", "rank", "node"),
    "node": ("run", "node"),
}
CARRIED: Final = frozenset({"cordon", "checkpoint", "hold", "stop"})
"""Actions that an alert may bring back by way of Alertmanager."""

KEEP_FIRING_FOR: Final = "1m"
"""A scrape that fails takes its series away. Without this the alert would end there and begin
again, and what it asks for would be asked for once more.
"""


@dataclass(frozen=True, slots=True)
class Export:
    """What Prometheus can watch.

    Attributes:
        groups: as in a rule file of Prometheus.
        left_out: (rule, why it cannot be said there).
    """

    groups: list[dict[str, Any]]
    left_out: list[tuple[str, str]]


class _UnsayableError(Exception):
    """A rule says what Prometheus cannot see."""


def export(rules: Iterable[Rule]) -> Export:
    """Return all enabled rules that can be said in PromQL, and a recorded series of each metric's
    value for a whole run.
    """
    alerts, left_out = [], []
    for rule in rules:
        if not rule.enabled:
            continue
        try:
            alerts.append(_alert(rule))
        except _UnsayableError as why:
            left_out.append((rule.name, str(why)))
    groups = [{"name": RECORDED, "rules": _records()}]
    if alerts:
        groups.append({"name": GROUP, "rules": alerts})
    return Export(groups, left_out)


def _records() -> list[dict[str, str]]:
    return [
        {
            "record": f"{metric.prometheus.replace('trainmaster_', 'trainmaster:', 1)}:run",
            "expr": _value(metric, "run"),
        }
        for metric in BY_NAME.values()
        if metric.prometheus
    ]


def _alert(rule: Rule) -> dict[str, Any]:
    if rule.for_.steps not in {None, 1}:
        raise _UnsayableError("it counts steps, and Prometheus sees scrapes")
    if rule.unless is not None or rule.warmup_steps or rule.settle_steps:
        raise _UnsayableError("it leaves steps out, and Prometheus does not know which")
    labels = {"severity": rule.severity, "trainmaster_rule": _literal(rule.name)}
    action = rule.actions[0].action if rule.actions and rule.mode == "act" else None
    if action in CARRIED:
        labels["trainmaster_action"] = str(action)
    told: dict[str, Any] = {"alert": rule.name, "expr": _expr(rule, rule.when), "labels": labels}
    if rule.for_.seconds is not None:
        told["for"] = f"{max(1, round(rule.for_.seconds * 1000))}ms"
    told["keep_firing_for"] = KEEP_FIRING_FOR
    told["annotations"] = {
        "summary": _literal(f"{rule.name}: {rule.metric}") + " of run {{ $labels.run }}",
        **({"description": _literal(rule.description)} if rule.description else {}),
    }
    return told


def _literal(text: str) -> str:
    """Return `text` for a field that Prometheus fills in as a template: shown as it is."""
    return text.replace("{{", '{{ "{{" }}')


def _expr(rule: Rule, condition: Condition) -> str:
    match condition:
        case AllOf():
            return " and ".join(f"({_expr(rule, each)})" for each in condition.of)
        case AnyOf():
            return " or ".join(f"({_expr(rule, each)})" for each in condition.of)
        case Above() | Below():
            if condition.clear is not None:
                raise _UnsayableError("it is over at another value than it begins at")
            sign = ">" if isinstance(condition, Above) else "<"
            value = _value(_metric(rule, condition.metric), rule.scope)
            return f"({value} {sign} {condition.value!r}) or {_not_finite(value)}"
        case NonFinite():
            return _not_finite(_value(_metric(rule, condition.metric), rule.scope))
        case _:
            raise _UnsayableError(
                f"{condition.condition} looks at steps, or at what was not measured"
            )


def _not_finite(value: str) -> str:
    """Return what has a value where `value` is NaN or infinite: less itself it is no 0."""
    return f"({value} - {value} != 0)"


def _metric(rule: Rule, name: str | None) -> Metric:
    metric = BY_NAME.get(name or rule.metric)
    if metric is None or not metric.prometheus:
        raise _UnsayableError(f"{name or rule.metric} is not exported to Prometheus")
    return metric


def _value(metric: Metric, scope: str) -> str:
    if scope not in _LABELS:
        raise _UnsayableError(f"Prometheus has no series by {scope}")
    return f"{_AGGREGATES[metric.reduce]} by ({', '.join(_LABELS[scope])}) ({metric.prometheus})"
