"""Incidents: a firing rule acts or asks, the action is verified, and what did not help is followed
by the next rung. Pure.

A rollback always changes something (batches are skipped, or the learning rate is lowered), and
always costs: resume is bit-exact, so the same state, data and draws would give the same trouble
again. After an action the run is on probation (`control.incidents.probation`). Fires anything
before it is over, the same incident climbs a rung, within the rule's `max_actions` and the run's
budgets; past them the run fails and a person is asked.

Of several rules that fire at once one acts: the most severe, then the one whose trouble began
first, then by name. The others join its incident.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from pydantic import TypeAdapter

from control.incidents import interventions, probation, record, rungs
from control.incidents.rung import Evidence, Rung
from control.lifecycle import State
from control.rules import actions
from control.rules.judgement import Judgement
from control.snapshot import Attempt, Incident
from control.turn import Turn
from trainmaster.actions import (
    HARMLESS_ACTIONS,
    PLACING_ACTIONS,
    Action,
    PlainAction,
    Situation,
    chosen,
)
from trainmaster.rule import Rule

_ACTION: TypeAdapter[PlainAction] = TypeAdapter(PlainAction)


def act(turn: Turn, judgements: Sequence[Judgement]) -> None:
    """Let the most severe rule that fires and may act take its next action, or ask; the others join
    its incident.
    """
    attempt = turn.attempt
    if attempt is None or turn.state != State.RUNNING:
        return
    firing = [each for each in judgements if _wants_to_act(turn, each, attempt)]
    if not firing:
        return
    firing.sort(
        key=lambda each: (
            each.rule.severity != "critical",
            each.rule.mode != "act",
            each.first_bad_step,
            each.rule.name,
            each.scope,
        )
    )
    judged = firing[0]
    evidence = evidence_of(judged)
    incident = _incident(turn, evidence)
    situation = _situation(judged, evidence, incident)
    action = _next(judged, situation, len(incident.actions))
    if judged.rule.mode == "ask" and action is not None:
        _propose(turn, attempt, judged, evidence, incident, action)
    else:
        climb(turn, attempt, evidence, incident, action, judged.rule)
    joined = {
        (each.rule.name, each.scope)
        for each in judgements
        if each.state == "firing"
        and each.first_bad_step is not None
        and incident.first_bad_step <= each.first_bad_step <= incident.last_bad_step
    }
    turn.alerts = [
        replace(change, incident=incident.id)
        if (change.rule, change.scope) in joined and change.state == "firing"
        else change
        for change in turn.alerts
    ]


def _wants_to_act(turn: Turn, judgement: Judgement, attempt: Attempt) -> bool:
    rule = judgement.rule
    if judgement.state != "firing" or rule.mode == "observe" or not rule.actions:
        return False
    if not judgement.patience_is_over or turn.snapshot.is_silenced(rule.name):
        return False
    if stands_back(turn, rule, attempt):
        return False
    for incident in turn.snapshot.incidents:
        waits = incident.proposed is not None and rule.mode == "ask"
        if waits or any(
            taken.get("generation") == attempt.generation
            and taken.get("first_bad_step") == judgement.first_bad_step
            for taken in incident.actions
        ):
            return False
    for alert in turn.snapshot.alerts:
        if (
            (alert.rule, alert.scope) == (rule.name, judgement.scope)
            and alert.state == "firing"
            and alert.incident is not None
            and alert.generation == attempt.generation
            and alert.first_bad_step == judgement.first_bad_step
        ):
            return False
    acted_at = turn.snapshot.acted_at.get(rule.name)
    if acted_at is None or turn.snapshot.incidents:
        return True
    return turn.now - acted_at >= timedelta(seconds=rule.cooldown_s)


def stands_back(turn: Turn, rule: Rule, attempt: Attempt) -> bool:
    """Return whether a rule only tells what it sees: all it could do is to change where and how the
    run trains, and there is nothing of that kind to change, or another rule's incident is open.
    """
    if not rule.actions or any(each.action not in PLACING_ACTIONS for each in rule.actions):
        return False
    if any(incident.rule != rule.name for incident in turn.snapshot.incidents):
        return True
    return not any(interventions.has_object(turn, attempt, each) for each in rule.actions)


def evidence_of(judgement: Judgement) -> Evidence:
    """Return what a firing rule has seen."""
    assert judgement.first_bad_step is not None, "a firing rule knows where the trouble began"
    assert judgement.last_bad_step is not None, "a firing rule knows the newest bad step"
    first, last = judgement.first_bad_step, judgement.last_bad_step
    where = f"step {first}" if first == last else f"steps {first} to {last}"
    on = "" if judgement.scope == "run" else f" of {judgement.scope}"
    value = judgement.value
    told = "missing" if value is None else f"{value:g}" if math.isfinite(value) else "not finite"
    return Evidence(
        rule=judgement.rule.name,
        scope=judgement.scope,
        sentence=f"The rule {judgement.rule.name!r} fires: {judgement.rule.metric}{on} was bad at "
        f"{where} (newest: {told})",
        first_bad_step=first,
        last_bad_step=last,
        severity=judgement.rule.severity,
    )


def _situation(judgement: Judgement, evidence: Evidence, incident: Incident) -> Situation:
    return Situation(
        rule=evidence.rule,
        metric=judgement.rule.metric,
        scope=evidence.scope,
        value=judgement.value,
        first_bad_step=evidence.first_bad_step,
        last_bad_step=evidence.last_bad_step,
        taken=tuple(str(each.get("action")) for each in incident.actions),
    )


def _next(judgement: Judgement, situation: Situation, num_taken: int) -> PlainAction | None:
    action: Action | None = actions.next_action(judgement.rule, num_taken)
    return chosen(action, situation) if action is not None else None


def _incident(turn: Turn, evidence: Evidence) -> Incident:
    """Return the open incident that this firing belongs to, or a new one."""
    for incident in turn.snapshot.incidents:
        return replace(
            incident,
            first_bad_step=min(incident.first_bad_step, evidence.first_bad_step),
            last_bad_step=max(incident.last_bad_step, evidence.last_bad_step),
        )
    return record.open_incident(turn, evidence)


def climb(
    turn: Turn,
    attempt: Attempt,
    evidence: Evidence,
    incident: Incident,
    action: PlainAction | None,
    rule: Rule | None,
) -> None:
    """Take the next action. Where the budget is spent, give up: the run, if the rule's ladder was
    to save it; else only the incident.
    """
    incident = _unhelpful(incident, evidence)
    if action is None:
        taken = ", ".join(str(each.get("action")) for each in incident.actions)
        spent: str | None = (
            f"The budget is spent: the rule {evidence.rule!r} has acted {len(incident.actions)} "
            f"times on this incident ({taken}; max_actions is {rule.max_actions if rule else 0})."
        )
    else:
        spent = rungs.forbidden(turn, action)
    if spent is None and action is not None:
        carry_out(turn, attempt, evidence, incident, action)
        return
    because = f"{spent} It did not help: {evidence.sentence}. A person must look."
    record.close(turn, incident, "failed", because)
    ladder = rule.actions if rule is not None else []
    if any(each.action not in HARMLESS_ACTIONS | PLACING_ACTIONS for each in ladder):
        turn.give_up("budget_exhausted", because)


def carry_out(
    turn: Turn, attempt: Attempt, evidence: Evidence, incident: Incident, action: PlainAction
) -> None:
    """Take `action` on `incident`, and put it on probation."""
    rung = rungs.take(turn, attempt, evidence, action, incident)
    _record(turn, attempt, evidence, incident, action, rung)


def carry_out_proposed(turn: Turn, attempt: Attempt, incident: Incident, answered: str) -> None:
    """Take what a rule in `ask` mode has proposed on `incident`.

    Args:
        answered: by whom it was approved, or that nobody answered; ends the sentence.
    """
    proposed = incident.proposed
    assert proposed is not None, f"{incident.id} proposes nothing"
    evidence = Evidence(
        rule=str(proposed["rule"]),
        scope=str(proposed["scope"]),
        sentence=f"{proposed['evidence']}; {answered}",
        first_bad_step=incident.first_bad_step,
        last_bad_step=incident.last_bad_step,
        severity=str(proposed["severity"]),
    )
    action = _ACTION.validate_python(proposed["action"])
    carry_out(turn, attempt, evidence, replace(incident, proposed=None), action)


def _propose(
    turn: Turn,
    attempt: Attempt,
    judgement: Judgement,
    evidence: Evidence,
    incident: Incident,
    action: PlainAction,
) -> None:
    """Let the incident wait for a person's answer."""
    ask = judgement.rule.ask
    because = f"{evidence.sentence}. It asks whether to {actions.describe(action)}."
    answer_by = turn.now + timedelta(seconds=ask.deadline_s)
    turn.tell(
        "incident_waiting",
        because,
        incident=incident.id,
        rule=evidence.rule,
        action=action.action,
        answer_by=answer_by.isoformat(),
    )
    turn.incidents[incident.id] = replace(
        record.content(incident, because),
        state="waiting",
        proposed={
            "action": action.model_dump(mode="json", exclude_none=True),
            "rule": evidence.rule,
            "scope": evidence.scope,
            "severity": evidence.severity,
            "evidence": evidence.sentence,
            "because": because,
            "generation": attempt.generation,
            "first_bad_step": evidence.first_bad_step,
            "last_bad_step": evidence.last_bad_step,
            "at": turn.now.isoformat(),
            "answer_by": answer_by.isoformat(),
            "then": ask.then,
        },
    )


def _record(
    turn: Turn,
    attempt: Attempt,
    evidence: Evidence,
    incident: Incident,
    action: PlainAction,
    rung: Rung,
) -> None:
    rule = next((each for each in turn.snapshot.rules if each.name == evidence.rule), None)
    entry = {
        "action": action.action,
        "at": turn.now.isoformat(),
        "rule": evidence.rule,
        "scope": evidence.scope,
        "generation": attempt.generation,
        "first_bad_step": evidence.first_bad_step,
        "last_bad_step": evidence.last_bad_step,
        **rung.remembered,
    }
    kept = {key: value for key, value in incident.verification.items() if key != "needed"}
    terms = kept or probation.terms(turn.snapshot, rule, incident.first_bad_step)
    turn.incidents[incident.id] = replace(
        record.content(incident, rung.because),
        state=rung.state,
        rung=len(incident.actions),
        actions=(*incident.actions, entry),
        verification={**terms, "needed": probation.PROBATION_STEPS},
        closed_as=rung.closed_as,
        closed=rung.closed_as is not None,
        proposed=None,
    )


def _unhelpful(incident: Incident, evidence: Evidence) -> Incident:
    """Mark the newest action as one that did not help, where there is one."""
    return record.with_outcome(incident, helped=False, outcome=evidence.sentence)
