"""Going over to another plan while training: the ranks take a checkpoint and end, and the next
attempt goes on from it, so that no step is done twice. Pure.

The order to stop carries what is to follow (`then`), so a control plane that dies in between goes
on as if it had not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from control import scheduler
from control.checkpoints.choice import unhealthy_steps
from control.lifecycle import Happening, State
from control.lineage import newest_step
from control.planner import automatic
from control.recovery import replanning
from control.snapshot import Attempt, RunSnapshot
from control.turn import Turn
from trainmaster.errors import SpecError
from trainmaster.plan import Plan

RETURN_AFTER_STEPS = 200


@dataclass(frozen=True, slots=True)
class Move:
    """What the next attempt is to be.

    Attributes:
        kind: degrade, rebalance or return; the cause kind of the attempt.
        because: why, as a sentence.
        plan: not placed.
        return_after_steps: clean steps after which a degraded run comes back.
    """

    kind: str
    because: str
    plan: Plan
    incident: str | None = None
    return_after_steps: int = RETURN_AFTER_STEPS

    def to_json(self) -> dict[str, Any]:
        """Return it as orders and attempts carry it."""
        return {
            "kind": self.kind,
            "because": self.because,
            "plan": self.plan.model_dump(mode="json"),
            "incident": self.incident,
            "return_after_steps": self.return_after_steps,
        }

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Move:
        """Read it back."""
        return cls(
            kind=told["kind"],
            because=told["because"],
            plan=Plan.model_validate(told["plan"]),
            incident=told["incident"],
            return_after_steps=told["return_after_steps"],
        )


def begin(turn: Turn, move: Move) -> None:
    """Have the ranks checkpoint and end, for `move` to follow."""
    turn.order("stop", checkpoint=True, then=move.to_json())


def is_under_way(snapshot: RunSnapshot) -> bool:
    """Return whether the ranks have an order to end for a move, and have not refused it."""
    return any("then" in order.args and order.state != "refused" for order in snapshot.orders)


def finish(turn: Turn, attempt: Attempt, step: int) -> bool:
    """End the attempt whose ranks ended for a move; False when they did not end for one."""
    order = next(
        (each for each in turn.snapshot.orders if "then" in each.args and each.state == "applied"),
        None,
    )
    if order is None:
        return False
    move = Move.of(order.args["then"])
    told = f"Stopped after step {step}. {move.because}"
    turn.end_attempt("superseded", told, ended_by={"kind": "moved", "then": move.to_json()})
    turn.happen(Happening.MOVED, told, step=step, move=move.kind)
    return True


def pending(newest: Attempt | None) -> Move | None:
    """Return the move that is to follow the newest attempt."""
    if newest is None or newest.ended_by is None or newest.ended_by["kind"] != "moved":
        return None
    return Move.of(newest.ended_by["then"])


def come_back(turn: Turn) -> None:
    """Have a run that trains on less than was asked for go back to all of it, after a clean stretch
    and once there is room.
    """
    snapshot, attempt = turn.snapshot, turn.attempt
    if attempt is None or turn.state != State.RUNNING or not replanning.is_reduced(snapshot):
        return
    if snapshot.incidents or turn.incidents or is_under_way(snapshot) or turn.orders:
        return
    governing = replanning.governing(snapshot.attempts)
    assert governing is not None, "a reduced run was reduced by an attempt"
    clean, wanted = clean_steps(snapshot, attempt), _wanted(snapshot, governing)
    if clean < wanted:
        return
    spec, workload = snapshot.run.spec, snapshot.run.workload
    if workload is None:
        return
    rooms = scheduler.rooms(spec.reach, snapshot.nodes, now=turn.now, held_too=True)
    try:
        full = automatic.choose(spec, workload, rooms).plan
    except SpecError:
        return
    if full.world_size <= attempt.plan.world_size:
        return
    if not scheduler.could_hold(full, spec.reach, snapshot.nodes, now=turn.now):
        return
    because = f"{clean} clean steps in a row: the run goes back to all that it asked for."
    begin(turn, Move("return", because, full))
    turn.tell("plan_returning", because, steps=clean)


def clean_steps(snapshot: RunSnapshot, attempt: Attempt) -> int:
    """Return how many steps in a row this attempt has done without a failed one."""
    unhealthy = unhealthy_steps(snapshot)
    return newest_step(snapshot) - max([attempt.resumed_from_step, *unhealthy])


def _wanted(snapshot: RunSnapshot, governing: Attempt) -> int:
    before = [each for each in snapshot.attempts if each.generation < governing.generation]
    move = pending(before[-1]) if before else None
    return move.return_after_steps if move is not None else RETURN_AFTER_STEPS
