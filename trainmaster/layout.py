"""Who does what under a plan: ranks, stages, replicas and their share of a batch. Pure arithmetic.

Ranks are numbered replica by replica, stage by stage. The samples of a batch are cut into
micro-batches in order; replica r takes the r-th run of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainmaster.plan import Plan, layer_ranges


@dataclass(frozen=True, slots=True)
class RankRole:
    """What one rank is under a plan. Layers are the half-open range [first_layer, end_layer)."""

    rank: int
    replica: int
    stage: int
    num_stages: int
    first_layer: int
    end_layer: int
    node: str | None

    @property
    def is_first_stage(self) -> bool:
        """Whether this rank reads the input."""
        return self.stage == 0

    @property
    def is_last_stage(self) -> bool:
        """Whether this rank computes the loss."""
        return self.stage == self.num_stages - 1


def roles(plan: Plan) -> tuple[RankRole, ...]:
    """Return the role of each rank, in order of rank."""
    found: list[RankRole] = []
    for replica, pipeline in enumerate(plan.pipelines):
        for stage, (first, end) in enumerate(layer_ranges(pipeline.layers)):
            node = pipeline.nodes[stage] if pipeline.nodes else None
            found.append(
                RankRole(len(found), replica, stage, len(pipeline.layers), first, end, node)
            )
    return tuple(found)


def replica_ranks(plan: Plan, replica: int) -> tuple[int, ...]:
    """Return the ranks of one pipeline, first stage first."""
    return tuple(role.rank for role in roles(plan) if role.replica == replica)


def stage_ranks(plan: Plan, stage: int) -> tuple[int, ...]:
    """Return the ranks that hold the same layers, one per replica: they sum gradients."""
    return tuple(role.rank for role in roles(plan) if role.stage == stage)


def sample_range(plan: Plan, replica: int) -> tuple[int, int]:
    """Return the half-open range of positions in a batch that `replica` processes."""
    first = sum(pipeline.micro_batches for pipeline in plan.pipelines[:replica]) * plan.micro_batch
    return first, first + plan.pipelines[replica].micro_batches * plan.micro_batch
