"""Nodes that join beside a run that was left to the planner: it goes over to a plan with them where
that is worth it, and not too often. Pure.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from control import scheduler
from control.lifecycle import State
from control.lineage import newest_step
from control.planner import automatic
from control.planner.joining import joined
from control.planner.replan import Replanned
from control.recovery import moves, replanning
from control.recovery.moves import Move
from control.snapshot import Attempt
from control.turn import Turn


def take_in(turn: Turn) -> None:
    """Have the run go over to a plan with nodes that stand idle beside it."""
    snapshot, attempt = turn.snapshot, turn.attempt
    spec, workload = snapshot.run.spec, snapshot.run.workload
    if attempt is None or turn.state != State.RUNNING or workload is None:
        return
    if spec.parallel != "auto" or not _may_move(turn, attempt):
        return
    rooms = scheduler.rooms(spec.reach, snapshot.nodes, now=turn.now, held_too=True)
    used = {node for pipeline in attempt.plan.pipelines for node in pipeline.nodes}
    if not used or all(node.id in used or not room for node, room in rooms):
        return
    found = joined(
        spec,
        workload,
        automatic.machines_of(spec, rooms, workload),
        attempt.plan,
        steps_left=max(0, spec.train.steps - newest_step(snapshot)),
        restart_s=replanning.restart_s(snapshot.attempts),
    )
    if isinstance(found, Replanned):
        because = f"Nodes stand idle beside the run: {found.because}."
        moves.begin(turn, Move("join", because, found.plan))
        taken = {node for pipeline in found.plan.pipelines for node in pipeline.nodes} - used
        turn.tell("plan_joining", because, nodes=sorted(taken))


def _may_move(turn: Turn, attempt: Attempt) -> bool:
    """Return whether nothing else is under way, and the run has trained long enough as it does."""
    snapshot = turn.snapshot
    if snapshot.incidents or turn.incidents or turn.orders or moves.is_under_way(snapshot):
        return False
    if replanning.is_reduced(snapshot) or turn.open_requests():
        return False
    wait_s = snapshot.run.spec.recovery.replan_after_s
    return wait_s is not None and turn.now >= _settled_at(attempt) + timedelta(seconds=wait_s)


def _settled_at(attempt: Attempt) -> datetime:
    return attempt.ready_at or attempt.started_at
