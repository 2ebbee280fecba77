"""Incidents: a firing rule acts, the action is verified, and what did not help is followed by the
next rung. Pure.

A rollback always changes something (batches are skipped, or the learning rate is lowered), and
always costs: resume is bit-exact, so the same state, data and draws would give the same trouble
again. After an action the run is on probation until `PROBATION_STEPS` healthy steps lie beyond the
last bad one: then the incident is closed. Fires anything before that, the same incident climbs a
rung, within the rule's `max_actions` and the run's `recovery.max_rollbacks`; past them the run
fails and a person is asked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from control import budgets
from control.checkpoints import quarantine
from control.choice import GOOD, choose_before, proved_sick, unhealthy_steps
from control.decision import IncidentChange
from control.lifecycle import TERMINAL, Desired, Happening, State
from control.lineage import newest_step
from control.rules import actions
from control.rules.evaluate import Judgement
from control.snapshot import Attempt, Incident
from control.turn import Turn
from trainmaster.rule import Action, Rollback

PROBATION_STEPS = 20


def act(turn: Turn, judgements: Sequence[Judgement]) -> None:
    """Let the most severe rule that fires and may act take its next action; the others join its
    incident.
    """
    attempt = turn.attempt
    if attempt is None or turn.state != State.RUNNING:
        return
    firing = [each for each in judgements if _wants_to_act(turn, each, attempt)]
    if not firing:
        return
    firing.sort(
        key=lambda each: (each.rule.severity != "critical", each.first_bad_step, each.rule.name)
    )
    chosen = firing[0]
    incident = _incident(turn, chosen)
    _take(turn, attempt, chosen, incident)
    joined = {each.rule.name for each in firing}
    turn.alerts = [
        replace(change, incident=incident.id)
        if change.rule in joined and change.state == "firing"
        else change
        for change in turn.alerts
    ]


def _wants_to_act(turn: Turn, judgement: Judgement, attempt: Attempt) -> bool:
    rule = judgement.rule
    if judgement.state != "firing" or rule.mode != "act" or not rule.actions:
        return False
    for incident in turn.snapshot.incidents:
        if any(
            taken.get("generation") == attempt.generation
            and taken.get("first_bad_step") == judgement.first_bad_step
            for taken in incident.actions
        ):
            return False
    for alert in turn.snapshot.alerts:
        if (
            alert.rule == rule.name
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


def _incident(turn: Turn, judgement: Judgement) -> Incident:
    """Return the open incident that this firing belongs to, or a new one."""
    first_bad_step, last_bad_step = _extent(judgement)
    for incident in turn.snapshot.incidents:
        return replace(
            incident,
            first_bad_step=min(incident.first_bad_step, first_bad_step),
            last_bad_step=max(incident.last_bad_step, last_bad_step),
        )
    opened = Incident(
        id=f"{turn.snapshot.run.id}-i{turn.snapshot.num_incidents + 1}",
        opened_at=turn.now,
        state="open",
        rule=judgement.rule.name,
        rung=0,
        first_bad_step=first_bad_step,
        last_bad_step=last_bad_step,
    )
    turn.tell(
        "incident_opened",
        f"{_fires(judgement)}.",
        incident=opened.id,
        rule=opened.rule,
    )
    return opened


def _extent(judgement: Judgement) -> tuple[int, int]:
    assert judgement.first_bad_step is not None, "a firing rule knows where the trouble began"
    assert judgement.last_bad_step is not None, "a firing rule knows the newest bad step"
    return judgement.first_bad_step, judgement.last_bad_step


def _fires(judgement: Judgement) -> str:
    return f"The rule {judgement.rule.name!r} fires: {_what(judgement)}"


def _what(judgement: Judgement) -> str:
    first, last = _extent(judgement)
    where = f"step {first}" if first == last else f"steps {first} to {last}"
    value = judgement.value
    told = "missing" if value is None else f"{value:g}" if math.isfinite(value) else "not finite"
    return f"{judgement.rule.metric} was bad at {where} (newest: {told})"


def _take(turn: Turn, attempt: Attempt, judgement: Judgement, incident: Incident) -> None:
    action = actions.next_action(judgement.rule, len(incident.actions))
    spent = None
    if isinstance(action, Rollback):
        spent = budgets.spent_on_rollbacks(turn.snapshot, now=turn.now)
    elif action is None:
        taken = ", ".join(str(each.get("action")) for each in incident.actions)
        spent = (
            f"The budget is spent: the rule {judgement.rule.name!r} has acted "
            f"{len(incident.actions)} times on this incident ({taken}; "
            f"max_actions is {judgement.rule.max_actions})."
        )
    if spent is not None:
        because = f"{spent} It did not help: {_what(judgement)}. A person must look."
        close(turn, incident, "failed", because)
        turn.give_up("budget_exhausted", because)
    elif isinstance(action, Rollback):
        _roll_back(turn, attempt, judgement, incident, action)
    elif action is not None:
        _order(turn, attempt, judgement, incident, action)


def _roll_back(
    turn: Turn, attempt: Attempt, judgement: Judgement, incident: Incident, action: Rollback
) -> None:
    first_bad_step, last_bad_step = _extent(judgement)
    choice = choose_before(turn.snapshot, first_bad_step)
    _quarantine_sick(turn, attempt, first_bad_step)
    own_skip = actions.batches_to_skip(action, first_bad_step, last_bad_step, attempt.skip)
    window = actions.lr_window(action, choice.step)
    changes = [f"skips batches {first} to {last}" for first, last in own_skip]
    if window is not None:
        changes.append(
            f"multiplies the learning rate by {window[2]:g} from step {window[0]} to {window[1]}"
        )
    cause = _fires(judgement)
    differs = f"This time the run {' and '.join(changes)}."
    because = f"{cause}. {choice.because} {differs}"
    taken = {
        "first_bad_step": first_bad_step,
        "last_bad_step": last_bad_step,
        "checkpoint": choice.checkpoint.id if choice.checkpoint else None,
        "step": choice.step,
        "rejected": [each.to_json() for each in choice.rejected],
        "own_skip": [list(each) for each in own_skip],
        "lr_window": list(window) if window else None,
        "differs": differs,
    }
    _record(turn, attempt, judgement, incident, action, taken, state="verifying", because=because)
    turn.end_attempt("rolled_back", cause)
    turn.happen(Happening.ROLLBACK_ORDERED, because, incident=incident.id)


def _quarantine_sick(turn: Turn, attempt: Attempt, first_bad_step: int) -> None:
    sick = proved_sick(turn.snapshot, attempt, first_bad_step)
    for checkpoint in turn.snapshot.checkpoints:
        if checkpoint.id == sick and checkpoint.state in GOOD:
            problem = (
                f"step {first_bad_step}, the first after it was restored in generation "
                f"{attempt.generation}, was not finite: the state in it is sick"
            )
            quarantine(turn, checkpoint, problem)


def _order(
    turn: Turn, attempt: Attempt, judgement: Judgement, incident: Incident, action: Action
) -> None:
    because = f"{_fires(judgement)}; it says to {actions.describe(action)}."
    first_bad_step, last_bad_step = _extent(judgement)
    taken = {"first_bad_step": first_bad_step, "last_bad_step": last_bad_step}
    state, closed_as = "verifying", None
    if action.action == "hold":
        state, turn.desired = "waiting", Desired.HELD
        turn.order("hold")
    elif action.action == "stop":
        state, closed_as, turn.desired = "closed", "failed", Desired.STOPPED
        turn.order("stop", checkpoint=True)
        turn.happen(Happening.STOP_ORDERED, because, incident=incident.id)
    else:
        turn.order("checkpoint")
    turn.tell("rule_acted", because, incident=incident.id, action=action.action)
    _record(
        turn,
        attempt,
        judgement,
        incident,
        action,
        taken,
        state=state,
        because=because,
        closed_as=closed_as,
    )


def _record(
    turn: Turn,
    attempt: Attempt,
    judgement: Judgement,
    incident: Incident,
    action: Action,
    taken: Mapping[str, Any],
    *,
    state: str,
    because: str,
    closed_as: str | None = None,
) -> None:
    entry = {
        "action": action.action,
        "at": turn.now.isoformat(),
        "rule": judgement.rule.name,
        "generation": attempt.generation,
        **taken,
    }
    turn.incidents[incident.id] = replace(
        _content(incident, because),
        state=state,
        rung=len(incident.actions),
        actions=(*incident.actions, entry),
        closed_as=closed_as,
        closed=closed_as is not None,
    )


def _content(incident: Incident, because: str) -> IncidentChange:
    return IncidentChange(
        id=incident.id,
        rule=incident.rule,
        state=incident.state,
        rung=incident.rung,
        first_bad_step=incident.first_bad_step,
        last_bad_step=incident.last_bad_step,
        because=because,
        actions=incident.actions,
        verification=incident.verification,
    )


def verify(turn: Turn, judgements: Sequence[Judgement]) -> None:
    """Close the incidents whose action has proved itself."""
    troubled = any(
        each.state in {"pending", "firing"} and each.rule.mode == "act" for each in judgements
    )
    if turn.attempt is None or turn.state not in {State.RUNNING, State.HELD} or troubled:
        return
    unhealthy = unhealthy_steps(turn.snapshot)
    newest = newest_step(turn.snapshot)
    for incident in turn.snapshot.incidents:
        if incident.id in turn.incidents or incident.state not in {"verifying", "waiting"}:
            continue
        skipped = sum(incident.last_bad_step < step <= newest for step in unhealthy)
        if newest - incident.last_bad_step - skipped >= PROBATION_STEPS:
            because = (
                f"{PROBATION_STEPS} healthy steps followed step {incident.last_bad_step}: the "
                "action helped."
            )
            close(
                turn,
                incident,
                "resolved",
                because,
                from_step=incident.last_bad_step + 1,
                to_step=newest,
            )


def close_with_run(turn: Turn) -> None:
    """Close what is open when the run is over: resolved where it succeeded."""
    if turn.state not in TERMINAL:
        return
    closed_as = {State.SUCCEEDED: "resolved", State.FAILED: "failed"}.get(turn.state, "dismissed")
    for incident in turn.snapshot.incidents:
        if incident.id not in turn.incidents:
            close(turn, incident, closed_as, f"The run {turn.state}.")


def close(turn: Turn, incident: Incident, closed_as: str, because: str, **verified: Any) -> None:
    """End an incident, with how long it lasted."""
    lasted_s = round((turn.now - incident.opened_at).total_seconds(), 3)
    turn.incidents[incident.id] = replace(
        _content(incident, because),
        state="closed",
        verification={**incident.verification, **verified, "mttr_s": lasted_s},
        closed_as=closed_as,
        closed=True,
    )
    turn.tell(
        "incident_closed",
        f"{incident.id} is {closed_as}: {because}",
        incident=incident.id,
        closed_as=closed_as,
    )
