"""Gives a waiting run its slots and its next attempt: all ranks at once, or a sentence that says
what is waited for. Pure.

Who has waited longest and has the highest priority goes first. Others may pass a run that has had
its turn for `PASS_AFTER_S` and did not fit, so that one which is too big for the nodes present does
not block the rest.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from control import drills, scheduler
from control.checkpoints.judging import interval, mark_abandoned, readmit
from control.decision import NewAttempt, NewChore
from control.lifecycle import Desired, Happening, State
from control.lineage import ENDLESS, up_to
from control.liveness.leases import LEASE_S
from control.planner import automatic
from control.recovery import replanning, succession
from control.recovery.endings import not_before
from control.recovery.succession import Beginning
from control.snapshot import Attempt, RunSnapshot
from control.turn import Turn
from trainmaster.errors import SpecError, UserError
from trainmaster.plan import Plan
from trainmaster.resolution import resolve
from trainmaster.spec import PlacementSpec, RunSpec
from trainmaster.wire import MADE_OF

PASS_AFTER_S = 10.0

REPLAN_AFTER_S = 10.0
"""For how long nodes that a run had may be away before it goes on with fewer replicas."""


def launch(turn: Turn) -> None:
    """Begin the next attempt of a run that waits for one, if there is room."""
    snapshot = turn.snapshot
    waits = (
        snapshot.run.state in {State.QUEUED, State.RECOVERING} and turn.state == snapshot.run.state
    )
    if not waits or turn.attempt is not None:
        return
    if snapshot.run.workload is None:
        _await_description(turn)
        return
    try:
        begin = succession.beginning(snapshot)
    except UserError as error:
        turn.refuse_open(error.message, "restore", "amend")
        return
    pause_until = not_before(snapshot)
    if begin.kind in {"restart", "retry"} and pause_until is not None and turn.now < pause_until:
        turn.because = (
            f"{begin.cause.rstrip('.')}. That came too soon after the last time: the next attempt "
            f"begins at {pause_until:%H:%M:%S} UTC."
        )
        return
    if _must_let_others_pass(turn):
        turn.because = f"Waiting: {snapshot.queued_before} runs are before it in the queue."
        return
    try:
        plan, why_plan = _plan(turn, begin, snapshot.attempt)
    except SpecError as error:
        turn.give_up("bad_spec", f"The plan cannot be carried out: {error.message}")
        return
    if plan is None:
        turn.because = why_plan
        return
    preferred = _last_nodes(snapshot.attempt)
    placement = _placement(begin, snapshot)
    placed = scheduler.place(plan, placement, snapshot.nodes, now=turn.now, preferred=preferred)
    if isinstance(placed, scheduler.Waiting):
        smaller = _replanned(turn, begin, plan)
        if smaller is None:
            turn.because = placed.because
            return
        begin, plan = smaller
        why_plan = ""
        placed = scheduler.place(plan, placement, snapshot.nodes, now=turn.now, preferred=preferred)
    if isinstance(placed, scheduler.Waiting):
        turn.because = placed.because
        return
    _begin(turn, begin, placed, why_plan)


def _await_description(turn: Turn) -> None:
    snapshot = turn.snapshot
    spec = snapshot.run.spec
    if snapshot.describe_problems:
        problems = "; ".join(snapshot.describe_problems)
        turn.give_up("bad_spec", f"The workload cannot be used: {problems}")
        return
    turn.because = "Waiting for a node to describe the workload."
    if not snapshot.describing:
        args = {"workload": spec.workload, "params": spec.params, "data": spec.data.source}
        turn.chores.append(NewChore("describe", args))


def _must_let_others_pass(turn: Turn) -> bool:
    snapshot = turn.snapshot
    if turn.state != State.QUEUED or snapshot.queued_before == 0:
        return False
    since = [snapshot.run.created_at]
    since += [each.created_at for each in snapshot.requests if each.kind == "resume"]
    since += [each.ended_at for each in snapshot.attempts[-1:] if each.ended_at is not None]
    return turn.now - max(since) < timedelta(seconds=PASS_AFTER_S)


def _plan(turn: Turn, begin: Beginning, newest: Attempt | None) -> tuple[Plan | None, str]:
    """Return the plan to run, unplaced, and why this one; None when it must wait for a slot to plan
    for.
    """
    snapshot = turn.snapshot
    workload = snapshot.run.workload
    assert workload is not None, "a plan needs the workload's description"
    if begin.plan is not None:
        return begin.plan, "The plan is as the restore asks." if begin.kind == "restore" else ""
    if newest is not None and begin.kind != "amend" and newest.cause_kind != "import":
        again = _as_before(turn, begin.spec, newest.plan)
        if again is not None:
            return again, ""
    rooms = scheduler.rooms(begin.spec.reach, snapshot.nodes, now=turn.now)
    if begin.spec.parallel == "auto" and (silent := _awaited(turn, begin)):
        return None, f"Waiting for a word from {', '.join(silent)} before a plan is made."
    if begin.spec.parallel == "auto" and not any(count for _, count in rooms):
        return None, "Waiting for a free slot to plan for: no node that can take ranks has one."
    choice = automatic.choose(begin.spec, workload, rooms)
    return choice.plan, choice.because if begin.spec.parallel == "auto" else ""


def _awaited(turn: Turn, begin: Beginning) -> list[str]:
    """Return the nodes without which a plan would be made too early: those that are silent at the
    moment, just after the run was submitted or the control plane came up.
    """
    snapshot = turn.snapshot
    up_since = snapshot.control_up_since
    from_now_on = [snapshot.run.created_at, *([up_since] if up_since else [])]
    if turn.now >= max(from_now_on) + timedelta(seconds=LEASE_S):
        return []
    return scheduler.expected(
        begin.spec.reach, snapshot.nodes, now=turn.now, control_up_since=up_since
    )


def _as_before(turn: Turn, spec: RunSpec, plan: Plan) -> Plan | None:
    """Return the plan of the newest attempt, to be placed anew; None where `parallel: auto` needs
    another one, for it was planned for nodes that are not there, or would not fit.
    """
    nodes = turn.snapshot.nodes
    if spec.parallel == "auto" and plan.predicted.step_time_s is not None:
        return plan if scheduler.holds(plan, nodes, now=turn.now) else None
    bare = _unplaced(plan, spec, turn.snapshot)
    if spec.parallel != "auto" or scheduler.could_hold(bare, spec.reach, nodes, now=turn.now):
        return bare
    return None


def _placement(begin: Beginning, snapshot: RunSnapshot) -> PlacementSpec:
    """Return on how many nodes the attempt may be: one, while the run is degraded."""
    placement = begin.spec.reach
    governing = replanning.governing(snapshot.attempts)
    goes_on = begin.kind not in {"start", "restore", "amend", "return"}
    degraded = goes_on and governing is not None and governing.cause_kind == "degrade"
    if begin.kind == "degrade" or degraded:
        return placement.model_copy(update={"nodes": 1, "min_nodes": 1})
    return placement


def _replanned(turn: Turn, begin: Beginning, plan: Plan) -> tuple[Beginning, Plan] | None:
    """Return how a run goes on with fewer replicas of the same stages, when nodes that it had have
    been gone for a while; None while it waits for them, or fewer do not fit either.
    """
    snapshot, placement = turn.snapshot, begin.spec.reach
    newest = snapshot.attempt
    if begin.kind not in {"restart", "retry"} or newest is None or newest.ended_at is None:
        return None
    if scheduler.could_hold(plan, placement, snapshot.nodes, now=turn.now):
        return None
    if turn.now - newest.ended_at < timedelta(seconds=REPLAN_AFTER_S):
        return None
    num_slots = scheduler.free_slots(placement, snapshot.nodes, now=turn.now)
    fewer = replanning.fewer_replicas(plan, num_slots, global_batch=begin.spec.train.global_batch)
    if fewer is None:
        return None
    cause = (
        f"{begin.cause.rstrip('.')}; the nodes that are left hold {fewer.replicas} of "
        f"{plan.replicas} replicas"
    )
    return replace(begin, kind="replan", cause=cause), fewer


def _unplaced(plan: Plan, spec: RunSpec, snapshot: RunSnapshot) -> Plan:
    """Return `plan` without the nodes that placement gave it, with those that the spec names."""
    bare = plan.model_copy(
        update={
            "pipelines": tuple(each.model_copy(update={"nodes": ()}) for each in plan.pipelines)
        }
    )
    if spec.parallel == "auto" or snapshot.run.workload is None:
        return bare
    asked = resolve(
        spec.parallel,
        num_layers=snapshot.run.workload.num_layers,
        global_batch=spec.train.global_batch,
    )
    shape = [(each.layers, each.micro_batches) for each in plan.pipelines]
    same = [(each.layers, each.micro_batches) for each in asked.pipelines] == shape
    return asked if same and asked.micro_batch == plan.micro_batch else bare


def _last_nodes(newest: Attempt | None) -> set[str]:
    if newest is None:
        return set()
    return {node for pipeline in newest.plan.pipelines for node in pipeline.nodes}


def _begin(turn: Turn, begin: Beginning, placed: scheduler.Placed, why_plan: str) -> None:
    snapshot = turn.snapshot
    generation = snapshot.run.next_generation
    if snapshot.attempt is not None:
        generation = max(generation, snapshot.attempt.generation + 1)
    checkpoint = begin.choice.checkpoint
    every = interval(begin.spec, None if begin.kind == "amend" else snapshot.attempt)
    turn.new_attempt = NewAttempt(
        generation=generation,
        parent_generation=checkpoint.generation if checkpoint else None,
        cause=begin.cause,
        cause_kind=begin.kind,
        plan=placed.plan,
        placements=placed.placements,
        checkpoint_every=every.every_steps,
        resumed_from_step=begin.choice.step,
        resumed_from_checkpoint=checkpoint.id if checkpoint else None,
        skip=begin.skip,
        own_skip=begin.own_skip,
        lr_windows=begin.lr_windows,
        lr_factor=begin.lr_factor,
        incident=begin.incident,
    )
    if begin.spec != snapshot.run.spec:
        turn.spec = begin.spec
    for request in turn.open_requests("restore", "resume", "amend"):
        turn.accept(request, f"Generation {generation} carries it out.", generation=generation)
    lineage = {**up_to(snapshot.attempts, checkpoint), generation: ENDLESS}
    mark_abandoned(turn, lineage)
    if begin.kind == "restore":
        readmit(turn, lineage)
    drills.carry(turn, generation)
    if turn.desired == Desired.HELD:
        turn.order("hold")  # there before the ranks are, so that they wait after their first step
    turn.tell("interval_chosen", every.told, every_steps=every.every_steps, step=begin.choice.step)
    nodes = ", ".join(dict.fromkeys(each.node for each in placed.placements))
    parts = [
        begin.cause.rstrip(".") + ".",
        begin.choice.because,
        why_plan,
        f"Generation {generation} takes {len(placed.placements)} slots on {nodes}.",
    ]
    turn.happen(
        Happening.ATTEMPT_LAUNCHED,
        " ".join(part for part in parts if part),
        cause_kind=begin.kind,
        attempt=generation,
        checkpoint=checkpoint.id if checkpoint else None,
        rejected=[each.to_json() for each in begin.choice.rejected],
        made_of=_made_of(snapshot, begin.spec),
    )


def _made_of(snapshot: RunSnapshot, spec: RunSpec) -> dict[str, Any] | None:
    """Return by what code, data and environment of an attempt can be told apart, as a node found
    them; None where no node has looked at what `spec` names.
    """
    run = snapshot.run
    same = (spec.workload, spec.params, spec.data) == (
        run.spec.workload,
        run.spec.params,
        run.spec.data,
    )
    if run.workload is None or not same:
        return None
    return run.workload.model_dump(mode="json", include=set(MADE_OF))
