"""What is done about a hang: an incident, the stacks of all ranks, and the word that the attempt is
to end. Pure.
"""

from __future__ import annotations

from control import drills
from control.decision import AlertChange, IncidentChange, NewStacks
from control.lifecycle import State
from control.liveness import hangs
from control.liveness.hangs import Hang
from control.snapshot import Alert, Attempt, Incident, Stacks
from control.turn import Turn

RULE = "hang"
"""The name under which hangs are shown among alerts and incidents."""


def watch(turn: Turn, attempt: Attempt) -> Hang | None:
    """Return the hang for which `attempt` is to be ended now; before that its stacks are called
    for, and kept with an incident.
    """
    hang = None
    if turn.state == State.RUNNING:
        hang = hangs.find(turn.snapshot, attempt, now=turn.now)
    shown = [
        alert for alert in turn.snapshot.alerts if alert.rule == RULE and alert.state == "firing"
    ]
    for alert in shown:
        if hang is None or alert.generation != attempt.generation:
            _settle(turn, attempt, alert)
    if hang is None:
        return None
    call = _newest_call(turn, attempt)
    if call is None:
        _open(turn, attempt, hang)
    elif hangs.stacks_are_in(call, turn.snapshot.ranks, now=turn.now):
        return hang
    return None


def _newest_call(turn: Turn, attempt: Attempt) -> Stacks | None:
    """Return the call for stacks that belongs to a hang which is not over."""
    still_open = {incident.id for incident in turn.snapshot.incidents}
    calls = [call for call in attempt.stacks if call.incident in still_open]
    return calls[-1] if calls else None


def _open(turn: Turn, attempt: Attempt, hang: Hang) -> None:
    snapshot = turn.snapshot
    because = f"{hang.cause[0].upper()}{hang.cause[1:]}. {hang.how}"
    opened = next(iter(snapshot.incidents), None)
    if opened is None:
        opened = Incident(
            id=f"{snapshot.run.id}-i{snapshot.num_incidents + 1}",
            opened_at=turn.now,
            state="open",
            rule=RULE,
            rung=0,
            first_bad_step=hang.step,
            last_bad_step=hang.step,
        )
        turn.tell("incident_opened", because, incident=opened.id, rule=RULE)
    turn.stacks.append(NewStacks(incident=opened.id))
    action = {
        "action": "restart",
        "at": turn.now.isoformat(),
        "rule": RULE,
        "generation": attempt.generation,
        "first_bad_step": hang.step,
        "last_bad_step": hang.step,
        "rank": hang.rank,
    }
    turn.incidents[opened.id] = IncidentChange(
        id=opened.id,
        rule=opened.rule,
        state="verifying",
        rung=len(opened.actions),
        first_bad_step=min(hang.step, opened.first_bad_step),
        last_bad_step=max(hang.step, opened.last_bad_step),
        because=because,
        actions=(*opened.actions, action),
        verification=opened.verification,
    )
    change = AlertChange(
        rule=RULE,
        scope=f"rank {hang.rank}",
        state="firing",
        value=round(hang.still_s, 3),
        threshold=round(hang.limit.seconds, 3),
        first_bad_step=hang.step,
        severity="critical",
        generation=attempt.generation,
        incident=opened.id,
    )
    turn.alerts.append(change)
    drill = drills.behind(snapshot.drills, attempt.generation, hang.step)
    turn.tell(
        "alert_firing",
        because,
        rule=RULE,
        scope=change.scope,
        first_bad_step=hang.step,
        severity="critical",
        drill=drill.fault if drill else None,
    )


def _settle(turn: Turn, attempt: Attempt, alert: Alert) -> None:
    """End the alert of a hang that is over; one that went by itself ends its incident, too."""
    healed = alert.generation == attempt.generation
    over = "its ranks go on by themselves" if healed else "another attempt has begun"
    turn.alerts.append(AlertChange.ending(alert))
    told = f"The hang of {alert.scope} is over: {over}."
    turn.tell(
        "alert_resolved",
        told,
        rule=RULE,
        scope=alert.scope,
        first_bad_step=alert.first_bad_step,
    )
    for incident in turn.snapshot.incidents:
        if healed and incident.id == alert.incident and incident.rule == RULE:
            lasted_s = round((turn.now - incident.opened_at).total_seconds(), 3)
            turn.incidents[incident.id] = IncidentChange(
                id=incident.id,
                rule=incident.rule,
                state="closed",
                rung=incident.rung,
                first_bad_step=incident.first_bad_step,
                last_bad_step=incident.last_bad_step,
                because=told,
                actions=incident.actions,
                verification={**incident.verification, "mttr_s": lasted_s},
                closed_as="healed",
                closed=True,
            )
            turn.tell(
                "incident_closed",
                f"{incident.id} is healed: {told}",
                incident=incident.id,
                closed_as="healed",
            )
