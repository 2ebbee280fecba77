"""Where the ranks of a plan go: all at once onto free slots, or not at all, and then what is
lacking. Pure.

Ranks are contiguous over the nodes taken, and a pipeline stays on one node where it can, so that
the slow link carries one gradient sum rather than every activation. Nodes that the run used last
are preferred: their disks are warm.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from control.decision import Placement
from control.liveness.leases import may_take_ranks, node_state
from control.snapshot import Node
from trainmaster.errors import Problem
from trainmaster.layout import roles
from trainmaster.plan import Plan
from trainmaster.spec import PlacementSpec


@dataclass(frozen=True, slots=True)
class Placed:
    """A plan whose pipelines name their nodes, and the slot of each rank."""

    plan: Plan
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why there is no room now, as a sentence."""

    because: str


def place(
    plan: Plan,
    placement: PlacementSpec,
    nodes: Sequence[Node],
    *,
    now: datetime,
    preferred: Collection[str] = (),
) -> Placed | Waiting:
    """Return a slot for each rank on nodes that can take ranks now, or what the run waits for."""
    fitting = [node for node in nodes if _labels_match(node, placement.labels)]
    usable = [node for node in fitting if may_take_ranks(node, now=now)]
    if not usable:
        return Waiting(_no_nodes(nodes, fitting, placement))
    free = {node.id: _free_slots(node) for node in usable}
    if len(usable) < placement.min_nodes:
        return Waiting(_no_room(plan.world_size, placement, usable, free))
    if any(pipeline.nodes for pipeline in plan.pipelines):
        return _as_asked(plan, free)
    ordered = sorted(usable, key=lambda node: (node.id not in preferred, node.id))
    for num_nodes in _numbers(placement, len(usable)):
        chosen = _choose(ordered, free, plan.world_size, num_nodes)
        counts = _spread(plan, [len(free[node.id]) for node in chosen])
        if counts is not None:
            homes = [node.id for node, n in zip(chosen, counts, strict=True) for _ in range(n)]
            return _placed(plan, homes, free)
    return Waiting(_no_room(plan.world_size, placement, usable, free))


def fits(plan: Plan, placement: PlacementSpec, nodes: Sequence[Node]) -> Problem | None:
    """Return why these nodes could not take `plan` even if they were empty; None if they could, or
    if none is known.
    """
    fitting = [node for node in nodes if _labels_match(node, placement.labels)]
    num_nodes = placement.nodes or len(fitting)
    if not nodes or (fitting and plan.world_size <= _room(fitting, num_nodes)):
        return None
    if not fitting:
        return labelled(placement, nodes)
    room = _room(fitting, num_nodes)
    everywhere = sum(node.slots for node in fitting)
    if everywhere >= plan.world_size:
        together = f"{len(fitting)} nodes have {everywhere} slots together"
        advice = f"ask for more nodes (placement.nodes): {together}"
    else:
        advice = f"use at most {everywhere} ranks, or start agents with more slots"
    return Problem(
        "parallel",
        f"the plan has {plan.world_size} ranks, but {_nodes(num_nodes)} "
        f"{'offers' if num_nodes == 1 else 'offer'} at most {room} slots: {advice}",
    )


def labelled(placement: PlacementSpec, nodes: Sequence[Node]) -> Problem | None:
    """Return that none of these nodes has the labels that are asked for, if that is so."""
    if not nodes or any(_labels_match(node, placement.labels) for node in nodes):
        return None
    wanted = ", ".join(f"{key}={value}" for key, value in placement.labels.items())
    return Problem("placement.labels", f"no node has the labels {wanted}")


def rooms(
    placement: PlacementSpec,
    nodes: Sequence[Node],
    *,
    now: datetime,
    held_too: bool = False,
) -> list[tuple[Node, int]]:
    """Return the nodes that could give slots now, those with most first, and how many each. Which
    `placement.nodes` of them a plan is for is the planner's choice.

    Args:
        held_too: the slots that this run holds count as free.
    """
    usable = [
        (node, len(_free_slots(node)) + (len(node.held_here) if held_too else 0))
        for node in nodes
        if may_take_ranks(node, now=now) and _labels_match(node, placement.labels)
    ]
    return sorted(usable, key=lambda room: -room[1])


def emptied(
    placement: PlacementSpec, nodes: Sequence[Node], *, now: datetime
) -> list[tuple[Node, int]]:
    """Return the nodes that can take ranks now, and how many each would if it were empty."""
    return [
        (node, node.slots)
        for node in nodes
        if may_take_ranks(node, now=now) and _labels_match(node, placement.labels)
    ]


def expected(
    placement: PlacementSpec,
    nodes: Sequence[Node],
    *,
    now: datetime,
    control_up_since: datetime | None = None,
) -> list[str]:
    """Return the nodes that could take ranks once they are heard again, and are not given up."""
    return [
        node.id
        for node in nodes
        if not node.cordoned
        and not may_take_ranks(node, now=now)
        and node_state(node, now=now, control_up_since=control_up_since) != "lost"
        and _labels_match(node, placement.labels)
    ]


def free_slots(placement: PlacementSpec, nodes: Sequence[Node], *, now: datetime) -> int:
    """Return the slots that the best `placement.nodes` nodes could give now."""
    return sum(count for _, count in rooms(placement, nodes, now=now)[: placement.nodes])


def holds(plan: Plan, nodes: Sequence[Node], *, now: datetime) -> bool:
    """Return whether the nodes that a plan names can take its ranks now."""
    homes = [node for pipeline in plan.pipelines for node in pipeline.nodes]
    free = {node.id: len(_free_slots(node)) for node in nodes if may_take_ranks(node, now=now)}
    return len(homes) == plan.world_size and all(
        homes.count(node) <= free.get(node, 0) for node in dict.fromkeys(homes)
    )


def could_hold(
    plan: Plan, placement: PlacementSpec, nodes: Sequence[Node], *, now: datetime
) -> bool:
    """Return whether the nodes that can take ranks now would hold `plan` if they were empty."""
    usable = [node for node in nodes if may_take_ranks(node, now=now)]
    return bool(usable) and fits(plan, placement, usable) is None


def _numbers(placement: PlacementSpec, present: int) -> range:
    """Return on how many nodes a plan may be, in the order of preference: on as many as somebody
    wants; else on few, for what is between nodes is slow.
    """
    if placement.nodes is None:
        return range(placement.min_nodes, present + 1)
    return range(placement.nodes, placement.min_nodes - 1, -1)


def _labels_match(node: Node, wanted: Mapping[str, str]) -> bool:
    return all(node.labels.get(key) == value for key, value in wanted.items())


def _free_slots(node: Node) -> list[int]:
    return [slot for slot in range(node.slots) if slot not in node.taken]


def _room(nodes: Sequence[Node], num_nodes: int | None) -> int:
    return sum(sorted((node.slots for node in nodes), reverse=True)[:num_nodes])


def _choose(
    ordered: Sequence[Node], free: Mapping[str, list[int]], world_size: int, num_nodes: int
) -> list[Node]:
    """Take the first single node that holds all; of several, those with most free slots."""
    if num_nodes == 1:
        return [node for node in ordered if len(free[node.id]) >= world_size][:1]
    roomy = sorted(ordered, key=lambda node: -len(free[node.id]))[:num_nodes]
    return [node for node in ordered if node in roomy]


def _spread(plan: Plan, capacities: Sequence[int]) -> list[int] | None:
    """Return ranks per node: whole pipelines where that works, else single ranks; None where
    nothing does.
    """
    if not capacities or sum(capacities) < plan.world_size:
        return None
    depths = {plan.ranks_of(pipeline) for pipeline in plan.pipelines}
    if len(depths) == 1 and len(plan.pipelines) >= len(capacities):
        depth = depths.pop()
        whole = _level(len(plan.pipelines), [capacity // depth for capacity in capacities])
        if whole is not None:
            return [count * depth for count in whole]
    return _level(plan.world_size, capacities)


def _level(units: int, capacities: Sequence[int]) -> list[int] | None:
    """Share `units` as evenly as capacities allow; None if they do not."""
    if sum(capacities) < units:
        return None
    counts = [0] * len(capacities)
    for _ in range(units):
        open_nodes = [node for node, room in enumerate(capacities) if counts[node] < room]
        counts[min(open_nodes, key=lambda node: (counts[node], node))] += 1
    return counts


def _as_asked(plan: Plan, free: Mapping[str, list[int]]) -> Placed | Waiting:
    homes: list[str] = []
    for pipeline in plan.pipelines:
        asked = pipeline.nodes
        depth = plan.ranks_of(pipeline)
        homes += asked if len(asked) == depth else [asked[0] if asked else next(iter(free))] * depth
    for node in dict.fromkeys(homes):
        if node not in free:
            return Waiting(
                f"Waiting for node {node}, which the plan names and which is not present."
            )
        if len(free[node]) < homes.count(node):
            return Waiting(
                f"Waiting for node {node}: the plan wants {homes.count(node)} slots there; "
                f"{len(free[node])} are free."
            )
    return _placed(plan, homes, free)


def _placed(plan: Plan, homes: Sequence[str], free: Mapping[str, list[int]]) -> Placed:
    left = {node: iter(slots) for node, slots in free.items()}
    placements = tuple(
        Placement(role.rank, homes[role.rank], next(left[homes[role.rank]])) for role in roles(plan)
    )
    pipelines = []
    first = 0
    for pipeline in plan.pipelines:
        last = first + plan.ranks_of(pipeline)
        pipelines.append(pipeline.model_copy(update={"nodes": tuple(homes[first:last])}))
        first = last
    return Placed(plan.model_copy(update={"pipelines": tuple(pipelines)}), placements)


def _no_nodes(nodes: Sequence[Node], fitting: Sequence[Node], placement: PlacementSpec) -> str:
    if not nodes:
        return "Waiting for a node: no agent has connected yet."
    if not fitting:
        wanted = ", ".join(f"{key}={value}" for key, value in placement.labels.items())
        return f"Waiting for a node with the labels {wanted}; none of {len(nodes)} has them."
    states = ", ".join(
        f"{node.id} is {'cordoned' if node.cordoned else 'not in contact'}" for node in fitting
    )
    return f"Waiting for a node: {states}."


def _no_room(
    world_size: int,
    placement: PlacementSpec,
    usable: Sequence[Node],
    free: Mapping[str, list[int]],
) -> str:
    on = "any nodes" if placement.nodes is None else _nodes(placement.nodes)
    need = f"{world_size} slots on {on}"
    if len(usable) < placement.min_nodes:
        return f"Needs {need}; only {_nodes(len(usable))} can take ranks now."
    largest = max(usable, key=lambda node: (len(free[node.id]), node.id))
    total = sum(node.slots for node in usable)
    told = f"Needs {need}; largest free: node {largest.id} has {len(free[largest.id])}."
    if _room(usable, placement.nodes) < world_size:
        told += f" Even empty, the nodes present could not hold it: {total} slots in all."
    return told


def _nodes(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"
