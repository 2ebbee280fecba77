"""Whether an action helped: its incident closes, or climbs a rung. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from control.incidents import course, probation, record
from control.incidents.rung import Evidence
from control.lifecycle import State
from control.rules import actions
from control.rules.judgement import Judgement
from control.snapshot import Attempt, Incident
from control.turn import Turn
from trainmaster.actions import Choose, Situation, chosen


def verify(turn: Turn, judgements: Sequence[Judgement]) -> None:
    """Close the incidents whose action has proved itself, and those that healed before anybody
    acted; climb where it has had its chance.
    """
    attempt = turn.attempt
    if attempt is None or turn.state not in {State.RUNNING, State.HELD}:
        return
    if any(
        each.state in {"pending", "firing"}
        and each.rule.mode != "observe"
        and not course.stands_back(turn, each.rule, attempt)
        for each in judgements
    ):
        return
    for incident in turn.snapshot.incidents:
        if incident.id in turn.incidents or incident.state not in {"verifying", "waiting"}:
            continue
        seen = probation.progress(turn.snapshot, incident)
        if seen["healthy_steps"] >= probation.PROBATION_STEPS:
            _pass(turn, incident, seen)
        elif incident.actions and probation.is_overdue(turn.snapshot, incident):
            _fail(turn, attempt, incident, seen)


def _pass(turn: Turn, incident: Incident, seen: Mapping[str, Any]) -> None:
    steps = f"{probation.PROBATION_STEPS} healthy steps followed step {incident.last_bad_step}"
    if not incident.actions:
        record.close(turn, incident, "healed", f"{steps} before anybody acted.", **seen)
        return
    because = f"{steps}: the action helped."
    helped = record.with_outcome(incident, helped=True, outcome=because)
    record.close(turn, helped, "resolved", because, **seen)


def _fail(turn: Turn, attempt: Attempt, incident: Incident, seen: Mapping[str, Any]) -> None:
    """Climb: no rule fires, and yet the run is not what it was."""
    rule = next((each for each in turn.snapshot.rules if each.name == incident.rule), None)
    evidence = Evidence(
        rule=incident.rule,
        scope="run",
        sentence=f"Of the {seen['to_step'] - incident.last_bad_step} steps since step "
        f"{incident.last_bad_step} only {seen['healthy_steps']} were healthy, measured against "
        f"{incident.verification.get('measured_against', 'finite, applied steps')}",
        first_bad_step=incident.first_bad_step,
        last_bad_step=incident.last_bad_step,
    )
    action = actions.next_action(rule, len(incident.actions)) if rule is not None else None
    if isinstance(action, Choose):
        situation = Situation(
            rule=evidence.rule,
            metric=rule.metric if rule is not None else "",
            scope=evidence.scope,
            value=None,
            first_bad_step=evidence.first_bad_step,
            last_bad_step=evidence.last_bad_step,
            taken=tuple(str(each.get("action")) for each in incident.actions),
        )
        action = chosen(action, situation)
    incident = replace(incident, last_bad_step=seen["to_step"])
    course.climb(turn, attempt, evidence, incident, action, rule)
