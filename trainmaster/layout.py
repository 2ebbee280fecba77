"""Who does what under a plan: ranks, stages, replicas and their share of a batch. Pure arithmetic.

Ranks are numbered replica by replica, place by place along the pipeline, and within a place by
their part of its tensors. The schedule deals the stages out to places: one to each, or several
(`virtual`). The samples of a batch are cut into micro-batches in order; replica r takes the r-th
run of them.

Replicas may be cut in different places. All cuts together part the layers into segments; the ranks
that hold a segment, one of each replica, sum its gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainmaster.plan import Plan, layer_ranges
from trainmaster.schedules import KNOWN


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a pipeline: the layers [first_layer, end_layer)."""

    index: int
    first_layer: int
    end_layer: int


@dataclass(frozen=True, slots=True)
class RankRole:
    """What one rank is under a plan.

    Attributes:
        stage: its place along the pipeline; with one stage to a rank, that stage's number.
        num_stages: places of its pipeline.
        tensor: which part of the tensors of its place it holds.
        stages: what it holds, first to last along the model.
        num_pipeline_stages: stages of its pipeline.
        is_divided: whether the replicas divide its parameters among them (ZeRO 3).
    """

    rank: int
    replica: int
    stage: int
    num_stages: int
    tensor: int
    stages: tuple[Stage, ...]
    num_pipeline_stages: int
    node: str | None
    is_divided: bool = False

    @property
    def layers(self) -> tuple[int, ...]:
        """Return the layers that this rank holds, in order."""
        return tuple(
            layer for stage in self.stages for layer in range(stage.first_layer, stage.end_layer)
        )

    @property
    def is_first_stage(self) -> bool:
        """Whether this rank reads the input."""
        return self.stages[0].index == 0

    @property
    def is_last_stage(self) -> bool:
        """Whether this rank computes the loss."""
        return self.stages[-1].index == self.num_pipeline_stages - 1


@dataclass(frozen=True, slots=True)
class Segment:
    """Layers [first_layer, end_layer) that no replica cuts in two, and the ranks that hold the same
    part of them: one of each replica, in order.
    """

    first_layer: int
    end_layer: int
    ranks: tuple[int, ...]


def roles(plan: Plan) -> tuple[RankRole, ...]:
    """Return the role of each rank, in order of rank."""
    # Where a third party's schedule is not installed, nothing runs it: only rank, replica and
    # place are asked for, and those do not depend on it.
    schedule = KNOWN.get(plan.schedule, KNOWN["looped_bfs"])
    found: list[RankRole] = []
    for replica, pipeline in enumerate(plan.pipelines):
        ranges, depth = layer_ranges(pipeline.layers), plan.depth_of(pipeline)
        first_rank = len(found)
        for place in range(depth):
            held = tuple(
                Stage(index, *ranges[index])
                for index in schedule.stages_of(depth, plan.virtual, place)
            )
            for tensor in range(plan.tensor):
                within = len(found) - first_rank
                node = pipeline.nodes[within] if pipeline.nodes else None
                found.append(
                    RankRole(
                        len(found),
                        replica,
                        place,
                        depth,
                        tensor,
                        held,
                        len(ranges),
                        node,
                        is_divided=plan.zero == 3 and plan.replicas > 1,
                    )
                )
    return tuple(found)


def replica_ranks(plan: Plan, replica: int, tensor: int = 0) -> tuple[int, ...]:
    """Return the ranks of one pipeline that hold part `tensor` of its tensors, first place
    first.
    """
    return tuple(
        role.rank for role in roles(plan) if (role.replica, role.tensor) == (replica, tensor)
    )


def place_ranks(plan: Plan, replica: int, stage: int) -> tuple[int, ...]:
    """Return the ranks that share the tensors of one place of a pipeline."""
    return tuple(
        role.rank for role in roles(plan) if (role.replica, role.stage) == (replica, stage)
    )


def segments(plan: Plan, tensor: int = 0) -> tuple[Segment, ...]:
    """Return the segments in order of layers, with the ranks that hold part `tensor` of each."""
    everybody = [role for role in roles(plan) if role.tensor == tensor]
    cuts = sorted({stage.first_layer for role in everybody for stage in role.stages})
    found = []
    for first, end in zip(cuts, [*cuts[1:], plan.num_layers], strict=True):
        holders = tuple(role.rank for role in everybody if first in role.layers)
        found.append(Segment(first, end, holders))
    return tuple(found)


def first_micro_batch(plan: Plan, replica: int) -> int:
    """Return the number, from 0, of the first micro-batch of a pass that `replica` takes."""
    return sum(pipeline.micro_batches for pipeline in plan.pipelines[:replica])


def leaves_of(plan: Plan, replica: int, passes: int) -> list[int]:
    """Return the numbers, from 0, of the micro-batches of a step of `passes` passes that `replica`
    takes, in order.
    """
    first, count = first_micro_batch(plan, replica), plan.pipelines[replica].micro_batches
    return [
        number * plan.micro_batches + first + each
        for number in range(passes)
        for each in range(count)
    ]


def device_behind(slot: int, num_devices: int) -> int:
    """Return which of its node's devices a slot is on: slots go round them."""
    return slot % num_devices


def sample_range(plan: Plan, replica: int, global_batch: int) -> tuple[int, int]:
    """Return the half-open range of positions in a batch that `replica` processes. Where
    micro-batches do not divide the batch, the last one of all is short.
    """
    first = first_micro_batch(plan, replica) * plan.micro_batch
    end = first + plan.pipelines[replica].micro_batches * plan.micro_batch
    return first, min(end, global_batch)


def nodes_of(plan: Plan) -> list[str]:
    """Return the node of each rank; all on one where none is named."""
    return [role.node or "" for role in roles(plan)]
