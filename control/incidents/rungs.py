"""What each action does to a run: one function per action, in ONE table. Pure.

Whoever adds an action adds its function and its line in `CARRIERS`. A function orders what is to be
done and returns what the incident is to remember of it; it neither opens nor closes incidents by
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from control import budgets
from control.checkpoints import judging
from control.checkpoints.choice import choose_before
from control.incidents import interventions
from control.incidents.rung import Evidence, Rung
from control.lifecycle import Desired, Happening
from control.rules import actions
from control.snapshot import Attempt, Incident
from control.turn import Turn
from trainmaster.actions import (
    Hold,
    Notify,
    PlainAction,
    Restart,
    Rollback,
    Skip,
    Stop,
    TakeCheckpoint,
)

Kind = TypeVar("Kind", bound=PlainAction)
Carrier = Callable[[Turn, Attempt, Evidence, Any, Incident], Rung]


def take(
    turn: Turn, attempt: Attempt, evidence: Evidence, action: PlainAction, incident: Incident
) -> Rung:
    """Carry out an action, and return what is to be remembered of it."""
    return CARRIERS[action.action](turn, attempt, evidence, action, incident)


def forbidden(turn: Turn, action: PlainAction) -> str | None:
    """Return which budget of the run forbids the action, as a sentence; None if none does."""
    if isinstance(action, Rollback):
        return budgets.spent_on_rollbacks(turn.snapshot, now=turn.now)
    if isinstance(action, Restart):
        return budgets.spent_on_restarts(turn.snapshot, now=turn.now)
    return None


def _skip(
    turn: Turn, attempt: Attempt, evidence: Evidence, action: Skip, incident: Incident
) -> Rung:
    because = f"{evidence.sentence}. The ranks apply no update that is not finite; the run goes on."
    turn.tell("rule_acted", because, incident=incident.id, action=action.action)
    return Rung(because)


def _roll_back(
    turn: Turn, attempt: Attempt, evidence: Evidence, action: Rollback, incident: Incident
) -> Rung:
    choice = choose_before(turn.snapshot, evidence.first_bad_step, earlier=action.earlier)
    judging.quarantine_restored(turn, attempt, evidence.first_bad_step)
    own_skip = actions.batches_to_skip(
        action, evidence.first_bad_step, evidence.last_bad_step, attempt.skip
    )
    window = actions.lr_window(action, choice.step)
    changes = [f"skips batches {first} to {last}" for first, last in own_skip]
    if window is not None:
        changes.append(
            f"multiplies the learning rate by {window[2]:g} from step {window[0]} to {window[1]}"
        )
    differs = f"This time the run {' and '.join(changes)}."
    left = budgets.rollbacks_left(turn.snapshot, now=turn.now) - 1
    because = f"{evidence.sentence}. {choice.because} {differs} Rollbacks left within 24 h: {left}."
    turn.end_attempt("rolled_back", evidence.sentence)
    turn.happen(Happening.ROLLBACK_ORDERED, because, incident=incident.id)
    return Rung(
        because,
        {
            "checkpoint": choice.checkpoint.id if choice.checkpoint else None,
            "step": choice.step,
            "rejected": [each.to_json() for each in choice.rejected],
            "earlier": action.earlier,
            "own_skip": [list(each) for each in own_skip],
            "lr_window": list(window) if window else None,
            "differs": differs,
        },
    )


def _restart(
    turn: Turn, attempt: Attempt, evidence: Evidence, action: Restart, incident: Incident
) -> Rung:
    because = f"{evidence.sentence}. All ranks end, and the run goes on from its newest checkpoint."
    turn.end_attempt("failed", evidence.sentence)
    turn.happen(Happening.ATTEMPT_FAILED, because, incident=incident.id)
    return Rung(because)


def _checkpoint(
    turn: Turn, attempt: Attempt, evidence: Evidence, action: TakeCheckpoint, incident: Incident
) -> Rung:
    turn.order("checkpoint")
    return _told(turn, evidence, action, incident)


def _hold(
    turn: Turn, attempt: Attempt, evidence: Evidence, action: Hold, incident: Incident
) -> Rung:
    turn.desired = Desired.HELD
    turn.order("hold")
    return _told(turn, evidence, action, incident, state="waiting")


def _stop(
    turn: Turn, attempt: Attempt, evidence: Evidence, action: Stop, incident: Incident
) -> Rung:
    turn.desired = Desired.STOPPED
    turn.order("stop", checkpoint=True)
    rung = _told(turn, evidence, action, incident, state="closed", closed_as="failed")
    turn.happen(Happening.STOP_ORDERED, rung.because, incident=incident.id)
    return rung


def _notify(
    turn: Turn, attempt: Attempt, evidence: Evidence, action: Notify, incident: Incident
) -> Rung:
    because = f"{evidence.sentence}."
    turn.tell(
        "rule_acted",
        because,
        incident=incident.id,
        action=action.action,
        channels=list(action.channels),
        severity=evidence.severity,
    )
    return Rung(because, {"channels": list(action.channels)})


def _told(
    turn: Turn,
    evidence: Evidence,
    action: PlainAction,
    incident: Incident,
    *,
    state: Literal["verifying", "waiting", "closed"] = "verifying",
    closed_as: str | None = None,
) -> Rung:
    because = f"{evidence.sentence}; the rule says to {actions.describe(action)}."
    turn.tell("rule_acted", because, incident=incident.id, action=action.action)
    return Rung(because, state=state, closed_as=closed_as)


CARRIERS: Mapping[str, Carrier] = {
    "skip": _skip,
    "rollback": _roll_back,
    "restart": _restart,
    "checkpoint": _checkpoint,
    "hold": _hold,
    "stop": _stop,
    "notify": _notify,
    "degrade": interventions.degrade,
    "rebalance": interventions.rebalance,
    "cordon": interventions.cordon,
    "dump_stacks": interventions.dump_stacks,
}
"""Action -> who carries it out. Rules with an action that is not here are not taken up."""
