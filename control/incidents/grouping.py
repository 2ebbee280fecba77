"""Which alerts belong to an incident beside those that act: what only warns, and begins about where
the incident's trouble lies, is a sign of the same. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from control.decision import AlertChange, IncidentChange
from control.incidents.probation import PROBATION_STEPS
from control.rules.judgement import Judgement
from control.snapshot import Incident
from control.turn import Turn


def join(turn: Turn, judgements: Sequence[Judgement]) -> None:
    """Add warnings to the open incident that they are signs of. What may act itself is left alone:
    of an incident it would only act as that one's next rung.
    """
    places = {(change.rule, change.scope): at for at, change in enumerate(turn.alerts)}
    for incident in _open(turn):
        for judgement in judgements:
            if not _warns(judgement) or not _is_near(judgement, incident):
                continue
            key = judgement.rule.name, judgement.scope
            if key in places:
                change = turn.alerts[places[key]]
                if change.state == "firing" and change.incident is None:
                    turn.alerts[places[key]] = replace(change, incident=incident.id)
                continue
            for alert in turn.snapshot.alerts:
                is_it = (alert.rule, alert.scope) == key and alert.state == "firing"
                if is_it and alert.incident is None:
                    joined = AlertChange.ending(alert, "firing")
                    turn.alerts.append(
                        replace(joined, incident=incident.id, flapping=alert.flapping)
                    )


def _open(turn: Turn) -> Iterator[Incident | IncidentChange]:
    yield from (each for each in turn.incidents.values() if not each.closed)
    yield from (each for each in turn.snapshot.incidents if each.id not in turn.incidents)


def _warns(judgement: Judgement) -> bool:
    rule = judgement.rule
    return judgement.state == "firing" and (rule.mode == "observe" or not rule.actions)


def _is_near(judgement: Judgement, incident: Incident | IncidentChange) -> bool:
    first = judgement.first_bad_step
    begins, ends = incident.first_bad_step, incident.last_bad_step
    return first is not None and begins - PROBATION_STEPS <= first <= ends + PROBATION_STEPS
