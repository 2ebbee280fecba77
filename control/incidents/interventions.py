"""Actions of rules on where and how a run trains: on a single node, with other shares, without a
node, and where its ranks stand. Pure.
"""

from __future__ import annotations

from control import scheduler
from control.decision import Cordon as NewCordon
from control.decision import NewStacks
from control.incidents.rung import Evidence, Rung
from control.lineage import newest_step
from control.planner import automatic, replan
from control.recovery import moves, replanning
from control.recovery.moves import Move
from control.snapshot import Attempt, Incident
from control.turn import Turn
from trainmaster.actions import Action, Cordon, Degrade, DumpStacks, PlainAction, Rebalance


def has_object(turn: Turn, attempt: Attempt, action: Action) -> bool:
    """Return whether `action` has anything to change: a run on one node cannot go on with a single
    one, and what a spec gives is not the planner's to change where only that is asked for.
    """
    if isinstance(action, Degrade):
        nodes = {node for pipeline in attempt.plan.pipelines for node in pipeline.nodes}
        return len(nodes) > 1
    if isinstance(action, Rebalance) and action.planned_only:
        return _is_planned(turn, attempt)
    return True


def _is_planned(turn: Turn, attempt: Attempt) -> bool:
    return turn.snapshot.run.spec.parallel == "auto" and bool(attempt.plan.predicted.step_time_s)


def degrade(
    turn: Turn, attempt: Attempt, evidence: Evidence, action: Degrade, incident: Incident
) -> Rung:
    """Go on with a single node, if one copy of the model fits there."""
    found = replanning.on_one_node(attempt.plan, turn.snapshot.nodes, turn)
    if isinstance(found, str):
        return _cannot(turn, evidence, action, incident, found)
    plan = found
    because = (
        f"{evidence.sentence}. The run goes on with {plan.replicas} of {attempt.plan.replicas} "
        f"replicas on a single node, and comes back after {action.return_after_steps} clean steps."
    )
    moves.begin(turn, Move("degrade", because, plan, incident.id, action.return_after_steps))
    return _done(turn, action, incident, because)


def rebalance(
    turn: Turn, attempt: Attempt, evidence: Evidence, action: Rebalance, incident: Incident
) -> Rung:
    """Give each replica as much of a batch as it is fast; plan anew for what the nodes have turned
    out to be, where they were planned for.
    """
    compute = turn.snapshot.rank_windows.get("compute_s", {})
    if _is_planned(turn, attempt):
        return _replan(turn, attempt, evidence, action, incident)
    seconds = replanning.measured_seconds(attempt, compute)
    if not seconds:
        why = "how fast each replica computes is not known: a rule on compute_s by rank tells it"
        return _cannot(turn, evidence, action, incident, why)
    found = replanning.rebalanced(
        attempt.plan, seconds, global_batch=turn.snapshot.run.spec.train.global_batch
    )
    if isinstance(found, str):
        return _cannot(turn, evidence, action, incident, found)
    speeds = ", ".join(f"{each:.3g}" for each in seconds)
    because = (
        f"{evidence.sentence}. Replicas take {speeds} s for a micro-batch: their shares become "
        f"{found.shares} instead of {attempt.plan.shares}."
    )
    moves.begin(turn, Move("rebalance", because, found, incident.id))
    return _done(turn, action, incident, because, shares=found.shares)


def _replan(
    turn: Turn, attempt: Attempt, evidence: Evidence, action: Rebalance, incident: Incident
) -> Rung:
    snapshot = turn.snapshot
    spec, workload = snapshot.run.spec, snapshot.run.workload
    assert workload is not None, "a planned run was described"
    rooms = scheduler.rooms(spec.reach, snapshot.nodes, now=turn.now, held_too=True)
    begins_s = replanning.restart_s(snapshot.attempts)
    found = replan.replanned(
        spec,
        workload,
        automatic.machines_of(spec, rooms, workload),
        attempt.plan,
        replanning.median_seconds(snapshot.rank_windows.get("compute_s", {})),
        steps_left=max(0, spec.train.steps - newest_step(snapshot)),
        # Ranks end and begin anew: twice what a beginning takes.
        migration_s=replan.MIGRATION_S if begins_s is None else 2 * begins_s,
    )
    if isinstance(found, str):
        return _cannot(turn, evidence, action, incident, found)
    because = f"{evidence.sentence}. {found.because}."
    moves.begin(turn, Move("rebalance", because, found.plan, incident.id))
    return _done(turn, action, incident, because, shares=found.plan.shares)


def cordon(
    turn: Turn, attempt: Attempt, evidence: Evidence, action: Cordon, incident: Incident
) -> Rung:
    """Give nothing new to the node that the alert names, or on which its rank is."""
    node = _node_of(turn, evidence.scope)
    if node is None:
        return _cannot(turn, evidence, action, incident, f"{evidence.scope} names no node")
    others = [each for each in turn.snapshot.nodes if each.id != node]
    because = f"{evidence.sentence}. Node {node} gets no new ranks."
    if not scheduler.could_hold(attempt.plan, turn.snapshot.run.spec.reach, others, now=turn.now):
        because += " The other nodes could not take this run as it is."
    turn.cordons.append(NewCordon(node, f"Run {turn.snapshot.run.id}: {evidence.sentence}."))
    return _done(turn, action, incident, because, node=node)


def dump_stacks(
    turn: Turn, attempt: Attempt, evidence: Evidence, action: DumpStacks, incident: Incident
) -> Rung:
    """Ask where the threads of all ranks stand."""
    turn.stacks.append(NewStacks(incident=incident.id))
    because = f"{evidence.sentence}. The stacks of all ranks are kept with the incident."
    return _done(turn, action, incident, because)


def _node_of(turn: Turn, scope: str) -> str | None:
    kind, _, name = scope.partition(" ")
    if kind == "node":
        return name or None
    if kind == "rank" and name.isdecimal():
        return next((each.node for each in turn.snapshot.ranks if each.rank == int(name)), None)
    return None


def _done(
    turn: Turn, action: PlainAction, incident: Incident, because: str, **remembered: object
) -> Rung:
    turn.tell("rule_acted", because, incident=incident.id, action=action.action)
    return Rung(because, remembered)


def _cannot(
    turn: Turn, evidence: Evidence, action: PlainAction, incident: Incident, why: str
) -> Rung:
    """Say that nothing is done, and why; the incident goes on to be looked at."""
    because = f"{evidence.sentence}. The action {action.action} is not possible: {why}."
    turn.tell("rule_could_not_act", because, incident=incident.id, action=action.action)
    return Rung(because, {"impossible": why})
