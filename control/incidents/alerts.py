"""From judgements to alerts: the level a rule shows, changed only when it changes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from control.decision import AlertChange
from control.lifecycle import TERMINAL
from control.rules import flapping
from control.rules.judgement import RULELESS, RUN, Judgement
from control.snapshot import Alert
from control.turn import Turn

ACTIVE = frozenset({"pending", "firing"})


def update(turn: Turn, judgements: Sequence[Judgement], generation: int) -> None:
    """Write what has changed: new alerts, alerts that fire, heal or are over, and those whose rule
    is gone.
    """
    alerts = {
        (alert.rule, alert.scope): alert
        for alert in turn.snapshot.alerts
        if alert.rule not in RULELESS
    }
    for judgement in judgements:
        _follow(turn, judgement, alerts.get((judgement.rule.name, judgement.scope)), generation)
    enabled = {rule.name for rule in turn.snapshot.rules if rule.enabled}
    judged = {(each.rule.name, each.scope) for each in judgements}
    watched = {each.rule.name for each in judgements}
    for key, alert in alerts.items():
        if alert.state not in ACTIVE:
            continue
        if alert.rule not in enabled:
            _end(turn, alert, f"The rule {alert.rule} is gone or disabled.")
        elif alert.rule in watched and key not in judged:
            _end(turn, alert, f"{alert.rule}: there is no {alert.scope} any more.")


def close_with_run(turn: Turn) -> None:
    """End what is still shown when the run is over."""
    if turn.state not in TERMINAL:
        return
    changed = {(change.rule, change.scope) for change in turn.alerts}
    for alert in turn.snapshot.alerts:
        if alert.state in ACTIVE and (alert.rule, alert.scope) not in changed:
            _end(turn, alert, f"The run {turn.state}.")


def _follow(turn: Turn, judgement: Judgement, alert: Alert | None, generation: int) -> None:
    shown = alert.state if alert is not None else "inactive"
    if shown == "firing":
        assert alert is not None
        _keep_or_end(turn, judgement, alert, generation)
    elif judgement.state == "firing" or _was_missed(judgement, alert):
        _fire(turn, judgement, generation)
    elif judgement.state == "pending":
        if shown != "pending" or (alert and alert.first_bad_step != judgement.first_bad_step):
            turn.alerts.append(_change(judgement, "pending", generation))
    elif shown == "pending":
        assert alert is not None
        _end(turn, alert, f"{judgement.rule.name} healed before it fired.")


def _keep_or_end(turn: Turn, judgement: Judgement, alert: Alert, generation: int) -> None:
    """Follow what is shown as firing. A rule that flaps is shown as one alert, with what it saw
    last; what it does when it fires is not decided by what is shown.
    """
    if judgement.is_flapping and not alert.flapping:
        _flap(turn, judgement)
    if judgement.state == "firing":
        if judgement.is_flapping and alert.first_bad_step != judgement.first_bad_step:
            turn.alerts.append(_change(judgement, "firing", generation))
    elif not judgement.is_flapping:
        _end(turn, alert, f"{judgement.rule.name} is over.")
    elif not alert.flapping:
        change = _change(judgement, "firing", alert.generation)
        turn.alerts.append(replace(change, incident=alert.incident))


def _flap(turn: Turn, judgement: Judgement) -> None:
    rule, lasting = judgement.rule, judgement.rule.for_
    length = f"{flapping.window(lasting):g} {'steps' if lasting.seconds is None else 'seconds'}"
    turn.tell(
        "alert_flapping",
        f"{rule.name} has fired and healed {flapping.FIRINGS} times within {length}: it is shown "
        f"as firing until {length} without it have passed.",
        rule=rule.name,
        scope=judgement.scope,
        first_bad_step=judgement.firings[-1].first_bad_step,
        **({"silenced": True} if turn.snapshot.is_silenced(rule.name) else {}),
    )


def _was_missed(judgement: Judgement, alert: Alert | None) -> bool:
    """Whether it fired and was over before anybody looked, as while no control plane was up."""
    if not judgement.firings or judgement.state != "resolved":
        return False
    seen = alert.first_bad_step if alert is not None else None
    return seen is None or seen < judgement.firings[-1].first_bad_step


def _fire(turn: Turn, judgement: Judgement, generation: int) -> None:
    change = _change(judgement, "firing", generation)
    turn.alerts.append(change)
    of_what = "" if judgement.scope == RUN else f" of {judgement.scope}"
    turn.tell(
        "alert_firing",
        f"{judgement.rule.name}: {judgement.rule.metric}{of_what} is bad since step "
        f"{change.first_bad_step}.",
        rule=judgement.rule.name,
        scope=judgement.scope,
        first_bad_step=change.first_bad_step,
        severity=judgement.rule.severity,
        **({"silenced": True} if turn.snapshot.is_silenced(judgement.rule.name) else {}),
    )


def _change(judgement: Judgement, state: str, generation: int) -> AlertChange:
    first_bad_step = judgement.first_bad_step
    if first_bad_step is None and judgement.firings:
        first_bad_step = judgement.firings[-1].first_bad_step
    return AlertChange(
        rule=judgement.rule.name,
        scope=judgement.scope,
        state=state,
        value=judgement.value,
        threshold=judgement.threshold,
        first_bad_step=first_bad_step,
        severity=judgement.rule.severity,
        generation=generation,
        flapping=state == "firing" and judgement.is_flapping,
    )


def _end(turn: Turn, alert: Alert, because: str) -> None:
    state = "resolved" if alert.state == "firing" else "inactive"
    turn.alerts.append(AlertChange.ending(alert, state))
    if state == "resolved":
        turn.tell(
            "alert_resolved",
            because,
            rule=alert.rule,
            scope=alert.scope,
            first_bad_step=alert.first_bad_step,
            **({"silenced": True} if turn.snapshot.is_silenced(alert.rule) else {}),
        )
