"""What is written of an incident: that it opens, what came of its actions, that it ends. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from control.decision import IncidentChange
from control.incidents.rung import Evidence
from control.lifecycle import TERMINAL, State
from control.snapshot import Incident
from control.turn import Turn


def open_incident(turn: Turn, evidence: Evidence) -> Incident:
    """Return a new incident, and say so in the run's history."""
    number = turn.snapshot.num_incidents + 1
    opened = Incident(
        id=f"{turn.snapshot.run.id}-i{number}",
        opened_at=turn.now,
        state="open",
        rule=evidence.rule,
        rung=0,
        first_bad_step=evidence.first_bad_step,
        last_bad_step=evidence.last_bad_step,
    )
    turn.tell("incident_opened", f"{evidence.sentence}.", incident=opened.id, rule=opened.rule)
    return opened


def with_outcome(incident: Incident, *, helped: bool, outcome: str) -> Incident:
    """Note what came of the newest action, where there is one."""
    if not incident.actions:
        return incident
    *before, last = incident.actions
    return replace(incident, actions=(*before, {**last, "helped": helped, "outcome": outcome}))


def content(incident: Incident, because: str) -> IncidentChange:
    """Return the incident as it is, to be changed."""
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
        proposed=incident.proposed,
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
        content(incident, because),
        state="closed",
        verification={**incident.verification, **verified, "mttr_s": lasted_s},
        closed_as=closed_as,
        closed=True,
        proposed=None,
    )
    turn.tell(
        "incident_closed",
        f"{incident.id} is {closed_as}: {because}",
        incident=incident.id,
        closed_as=closed_as,
    )
