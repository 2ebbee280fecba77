"""Ranks that tell nothing while the others go on. Pure.

A rank that hangs holds up all. One that alone is silent trains, and its facts are lost on the way:
a spool that cannot be read, a disk that is full. Its values are in no mean, so people must know.
"""

from __future__ import annotations

import math

from control.decision import AlertChange
from control.lifecycle import State
from control.liveness.leases import node_state
from control.snapshot import Alert, Attempt
from control.turn import Turn

RULE = "silent rank"
AFTER_S = 30.0
LEAST_STEPS = 50
"""A rank is silent that is so many steps, and so long, behind what the others have told."""

RECENT = 16


def watch(turn: Turn) -> None:
    """Fire one alert per silent rank, and end it when the rank is heard again or its attempt is
    over.
    """
    attempt = turn.attempt
    if attempt is None or turn.state != State.RUNNING:
        return
    shown = {
        alert.scope: alert
        for alert in turn.snapshot.alerts
        if alert.rule == RULE and alert.state == "firing"
    }
    silent = _silent(turn, attempt)
    for scope, alert in shown.items():
        if scope not in silent or alert.generation != attempt.generation:
            turn.alerts.append(AlertChange.ending(alert))
            over = "is heard again" if alert.generation == attempt.generation else "has ended"
            turn.tell(
                "alert_resolved",
                f"{scope.capitalize()} {over}.",
                rule=RULE,
                scope=scope,
                first_bad_step=alert.first_bad_step,
            )
    for scope, (node, last, newest) in silent.items():
        if _is_told(shown.get(scope), attempt):
            continue
        turn.alerts.append(
            AlertChange(
                rule=RULE,
                scope=scope,
                state="firing",
                value=None,
                threshold=None,
                first_bad_step=last + 1,
                severity="warning",
                generation=attempt.generation,
            )
        )
        turn.tell(
            "alert_firing",
            f"{scope.capitalize()} on {node} has told nothing beyond step {last}, while others are "
            f"at step {newest}: means are without it. See its agent's log and its disk.",
            rule=RULE,
            scope=scope,
            first_bad_step=last + 1,
            severity="warning",
        )


def _silent(turn: Turn, attempt: Attempt) -> dict[str, tuple[str, int, int]]:
    """Return scope -> (node, last step, newest step of all) of silent ranks."""
    snapshot = turn.snapshot
    told = {rank.rank: rank.last_step or attempt.resumed_from_step for rank in snapshot.ranks}
    newest = max(told.values(), default=0)
    most = _most_steps(turn)
    found = {}
    for rank in snapshot.ranks:
        node = snapshot.node(rank.node)
        # What a node that is out of contact has to tell comes when it is back.
        heard = node is not None and (
            node_state(node, now=turn.now, control_up_since=snapshot.control_up_since) == "present"
        )
        if heard and rank.state != "exited" and newest - told[rank.rank] >= most:
            found[f"rank {rank.rank}"] = (rank.node, told[rank.rank], newest)
    return found


def _most_steps(turn: Turn) -> float:
    window = turn.snapshot.windows.get("step_time_s", ())
    recent = [
        sample.value
        for sample in window[-RECENT:]
        if sample.value is not None and math.isfinite(sample.value) and sample.value > 0
    ]
    if not recent:
        return LEAST_STEPS
    return max(LEAST_STEPS, AFTER_S * len(recent) / sum(recent))


def _is_told(alert: Alert | None, attempt: Attempt) -> bool:
    return alert is not None and alert.generation == attempt.generation
