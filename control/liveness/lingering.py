"""Parts of a rank's life whose duration cannot be learned, and that take very long. Pure.

A start, a restore, a save or the first steps of a generation may take minutes for good reasons, so
nobody is ended for it (`control.liveness.hangs`). What takes longer than it ever should is told, so
that a person looks.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from control.decision import AlertChange
from control.lifecycle import State
from control.liveness import hangs
from control.snapshot import Attempt, Pulse, Rank
from control.turn import Turn

RULE: Final = "long section"
PATIENCE_S: Final = MappingProxyType(
    {"starting": 900.0, "restoring": 1800.0, "checkpoint": 600.0, "ending": 600.0}
)
"""Section -> how long a rank may stand still in it before that is told, seconds."""

FIRST_STEPS_S: Final = 900.0
"""The same for a step while the steps of a generation are too few to learn from."""


def watch(turn: Turn) -> None:
    """Fire one alert for the rank that holds up the others, and end it when that rank has come on
    or its attempt is over.
    """
    attempt = turn.attempt
    if attempt is None or turn.state not in {State.STARTING, State.RUNNING}:
        return
    long = _long(turn, attempt)
    shown = [
        alert for alert in turn.snapshot.alerts if alert.rule == RULE and alert.state == "firing"
    ]
    lasting = {
        alert.scope
        for alert in shown
        if alert.generation == attempt.generation and alert.scope in long
    }
    for alert in shown:
        if alert.scope in lasting:
            continue
        turn.alerts.append(AlertChange.ending(alert))
        turn.tell(
            "alert_resolved",
            f"{alert.scope.capitalize()} has come on, or its attempt has ended.",
            rule=RULE,
            scope=alert.scope,
            first_bad_step=alert.first_bad_step,
        )
    if lasting or not long:
        return
    scope, (rank, pulse, patience_s) = min(long.items(), key=lambda each: hangs.guilt(each[1][1]))
    _fire(turn, attempt, scope, rank, pulse, patience_s)


def _long(turn: Turn, attempt: Attempt) -> dict[str, tuple[Rank, Pulse, float]]:
    """Return scope -> rank, where it stands, and the patience that is over."""
    window = turn.snapshot.windows.get("step_time_s", ())
    is_learned = hangs.learned_limit(window, attempt.generation) is not None
    found = {}
    for rank in turn.snapshot.ranks:
        pulse = rank.pulse
        if pulse is None or rank.state == "exited":
            continue
        if not hangs.is_heard(rank, turn.snapshot, turn.now):
            continue
        patience_s = PATIENCE_S.get(pulse.section)
        if pulse.section == "step" and not is_learned:
            patience_s = FIRST_STEPS_S
        if patience_s is not None and pulse.still_s > patience_s:
            found[f"rank {rank.rank}"] = (rank, pulse, patience_s)
    return found


def _fire(
    turn: Turn, attempt: Attempt, scope: str, rank: Rank, pulse: Pulse, patience_s: float
) -> None:
    doing = "in one of its first steps" if pulse.section == "step" else f"at {pulse.section}"
    turn.alerts.append(
        AlertChange(
            rule=RULE,
            scope=scope,
            state="firing",
            value=round(pulse.still_s, 3),
            threshold=patience_s,
            first_bad_step=pulse.step,
            severity="warning",
            generation=attempt.generation,
        )
    )
    turn.tell(
        "alert_firing",
        f"{scope.capitalize()} on {rank.node} has been {doing} for {pulse.still_s:.0f} s, and "
        f"{patience_s:.0f} s is long. How long that may take cannot be learned, so nothing is "
        "ended: look at its stacks, and stop or restore the run if it is stuck.",
        rule=RULE,
        scope=scope,
        first_bad_step=pulse.step,
        severity="warning",
    )
