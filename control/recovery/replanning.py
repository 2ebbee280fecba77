"""Another plan for a run that has one: fewer replicas of the same stages, a single node, other
shares. Pure.

Stages stay as they are, so that what each rank holds stays as it was proven to fit; only how many
copies there are, and who takes how much of a batch, changes. Checkpoints do not know how they were
split, so any of these plans goes on from any checkpoint of the run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from control.liveness.leases import may_take_ranks
from control.planner import automatic
from control.planner.shortage import shortage
from control.snapshot import Attempt, Node, Run, RunSnapshot, Sample
from control.turn import Turn
from trainmaster.layout import roles
from trainmaster.plan import Pipeline, Plan, Prediction, even_split
from trainmaster.resolution import plan_problems

MEASURED_STEPS = 20
"""The newest steps by which replicas are measured."""

MEASURED_ATTEMPTS = 3
"""The newest attempts by which a beginning is measured."""

REDUCED = frozenset({"degrade", "replan"})
"""Kinds of attempts that run on less than was asked for."""

_GOVERN = REDUCED | {"start", "restore", "amend", "import", "return"}


def fewer_replicas(plan: Plan, num_slots: int, *, global_batch: int) -> Plan | None:
    """Return the plan with as many of its replicas as `num_slots` hold, fewer than it has; None
    where not even one fits, or none of these plans can be carried out.
    """
    for replicas in range(plan.replicas - 1, 0, -1):
        kept = plan.pipelines[:replicas]
        shares = even_split(plan.micro_batches, replicas)[::-1]
        found = _with(plan, kept, shares)
        if found.world_size <= num_slots and not plan_problems(
            found, num_layers=plan.num_layers, global_batch=global_batch
        ):
            return found
    return None


def on_one_node(plan: Plan, nodes: Sequence[Node], turn: Turn) -> Plan | str:
    """Return the plan for the roomiest single node whose memory it fits; or why there is none, as a
    clause.
    """
    used = {node for pipeline in plan.pipelines for node in pipeline.nodes}
    if len(used) == 1:
        return f"the run is on a single node already ({used.pop()})"
    able = [node for node in nodes if may_take_ranks(node, now=turn.now)]
    if not able:
        return "no node can take ranks now"
    placement = turn.snapshot.run.spec.placement
    if placement.min_nodes > 1:
        return f"placement.min_nodes is {placement.min_nodes}"
    able.sort(key=lambda node: (_room(node), node.id in used, node.id), reverse=True)
    why_not = []
    for node in able:
        found = _on(node, plan, turn.snapshot.run)
        if isinstance(found, Plan):
            return found
        why_not.append(found)
    return why_not[0]


def _on(node: Node, plan: Plan, run: Run) -> Plan | str:
    spec, room = run.spec, _room(node)
    found = fewer_replicas(plan, room, global_batch=spec.train.global_batch)
    if found is None:
        one_copy = min(map(plan.ranks_of, plan.pipelines))
        return (
            f"one copy of the model takes {one_copy} ranks, and the roomiest node {node.id} has "
            f"{room} slots for them"
        )
    if run.workload is not None:
        machines = automatic.machines_of(spec, [(node, room)], run.workload)
        lacking = shortage(spec, run.workload, machines, found)
        if lacking is not None:
            return (
                f"the model does not fit into the memory of the roomiest node {node.id}: {lacking}"
            )
    return found


def rebalanced(plan: Plan, seconds: Sequence[float], *, global_batch: int) -> Plan | str:
    """Return the plan with shares by measured speed; or why they stay, as a clause.

    Args:
        seconds: what each replica takes for one micro-batch.
    """
    if plan.replicas < 2:
        return "there is one replica"
    shares = [1] * plan.replicas
    for _ in range(plan.micro_batches - plan.replicas):
        # Whoever would be ready first takes the next one.
        ready = [(share + 1) * each for share, each in zip(shares, seconds, strict=True)]
        shares[ready.index(min(ready))] += 1
    if shares == plan.shares:
        return f"shares {plan.shares} fit the measured speeds already"
    found = _with(plan, plan.pipelines, shares)
    problems = plan_problems(found, num_layers=plan.num_layers, global_batch=global_batch)
    if problems:
        return f"shares {shares} would fit the measured speeds, but {problems[0].message}"
    return found


def measured_seconds(attempt: Attempt, compute: Mapping[int, Sequence[Sample]]) -> list[float]:
    """Return what each replica takes to compute a micro-batch: as its slowest rank does; empty
    while that is not known of all.

    Args:
        compute: rank -> seconds of compute per step.
    """
    plan = attempt.plan
    slowest = [0.0] * plan.replicas
    medians = median_seconds(compute)
    for role in roles(plan):
        if role.rank not in medians:
            return []
        each = medians[role.rank] / plan.pipelines[role.replica].micro_batches
        slowest[role.replica] = max(slowest[role.replica], each)
    return slowest if min(slowest) > 0 else []


def median_seconds(compute: Mapping[int, Sequence[Sample]]) -> dict[int, float]:
    """Return what each rank computes for in a step lately; those that do not tell are left out."""
    found = {}
    for rank, samples in compute.items():
        values = [each.value for each in samples[-MEASURED_STEPS:] if each.value is not None]
        if values:
            found[rank] = sorted(values)[len(values) // 2]
    return found


def governing(attempts: Collection[Attempt]) -> Attempt | None:
    """Return the attempt that fixed on how much the run trains: the newest that a person began, or
    that went over to less or back.
    """
    return next((each for each in reversed(list(attempts)) if each.cause_kind in _GOVERN), None)


def is_reduced(snapshot: RunSnapshot) -> bool:
    """Return whether the run trains on less than was asked for."""
    found = governing(snapshot.attempts)
    return found is not None and found.cause_kind in REDUCED


def _room(node: Node) -> int:
    """Return the slots that this run could have on a node."""
    return node.slots - len(node.taken - node.held_here)


def _with(plan: Plan, pipelines: Sequence[Pipeline], shares: Sequence[int]) -> Plan:
    changed = tuple(
        each.model_copy(update={"micro_batches": share, "nodes": ()})
        for each, share in zip(pipelines, shares, strict=True)
    )
    return plan.model_copy(update={"pipelines": changed, "predicted": Prediction()})


def restart_s(attempts: Sequence[Attempt]) -> float | None:
    """Return what the slowest of the newest attempts took to begin, in seconds; None where none
    did.
    """
    newest = attempts[-MEASURED_ATTEMPTS:]
    took = [(each.ready_at - each.started_at) for each in newest if each.ready_at is not None]
    return max(took).total_seconds() if took else None
