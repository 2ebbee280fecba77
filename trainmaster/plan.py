"""What a spec asks of parallelism, and the resolved strategy of an attempt.

A plan is data: pipelines (replicas), their stages as layer counts, their shares as micro-batches.
With `virtual` stages per rank a pipeline has that many times as many stages as ranks; with `tensor`
each of its places is taken by so many ranks. Who does what follows from the plan alone
(`trainmaster.layout`); how it follows from what is asked is in `trainmaster.resolution`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, computed_field

from trainmaster.cells import Cell, Offload, Recompute, Zero

MIB = 1 << 20

MOST = 2**53
"""Of anything that is counted: what a float64 in samples and JSON still tells from its
neighbours.
"""
Positive = Annotated[int, Field(ge=1, le=MOST)]
Natural = Annotated[int, Field(ge=0, le=MOST)]


class Strict(BaseModel):
    """Frozen, closed, and without coercion: `true` is not 1, and "10" is not 10."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class PipelineAsk(Strict):
    """One pipeline as a spec may spell it out: layer counts per stage, its number of micro-batches,
    and a node for each of its ranks.
    """

    layers: Annotated[list[Positive], Field(min_length=1)]
    micro_batches: Positive
    nodes: list[str] = []


class ParallelAsk(Strict):
    """The `parallel` section of a spec."""

    replicas: Positive = 1
    stages: Positive = 1
    tensor: Positive = 1
    micro_batch: Positive | None = None
    schedule: str = "1f1b"
    virtual: Positive | None = None
    zero: Zero = 0
    offload: Offload = "none"
    recompute: Recompute = "none"
    sync_every: Positive = 1
    bucket_mb: Annotated[float, Field(gt=0, le=4096)] = 25
    layers: list[list[int]] | None = None
    shares: list[Positive] | None = None
    pipelines: Annotated[list[PipelineAsk], Field(min_length=1)] | None = None


class Resolved(BaseModel):
    """Frozen; read back from our own rows and messages, so tolerant of a newer writer's keys."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Prediction(Resolved):
    """What the planner expects of a plan."""

    step_time_s: float | None = None
    bubble_ratio: float | None = None
    memory_bytes: list[int] = []


class Pipeline(Resolved):
    """One replica: `layers[s]` layers on stage s, its ranks at home on `nodes` once placed;
    `micro_batches` is its share of a step.
    """

    layers: tuple[Positive, ...]
    micro_batches: Positive
    nodes: tuple[str, ...] = ()


class Plan(Resolved):
    """A resolved plan. `nodes` of its pipelines are empty until it is placed."""

    micro_batch: Positive
    schedule: str
    virtual: Positive = 1
    zero: Zero = 0
    offload: Offload = "none"
    recompute: Recompute = "none"
    bucket_bytes: Positive = 25 * MIB
    sync_every: Positive = 1
    tensor: Positive = 1
    pipelines: tuple[Pipeline, ...]
    predicted: Prediction = Prediction()

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return sum(map(self.ranks_of, self.pipelines))

    def depth_of(self, pipeline: Pipeline) -> int:
        """Return how many places a pipeline has, each with `virtual` stages and `tensor` ranks."""
        return len(pipeline.layers) // self.virtual

    def ranks_of(self, pipeline: Pipeline) -> int:
        """Return the number of ranks of one pipeline."""
        return self.depth_of(pipeline) * self.tensor

    @property
    def is_ragged(self) -> bool:
        """Whether replicas are cut in different places."""
        return len({pipeline.layers for pipeline in self.pipelines}) > 1

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one step over all replicas."""
        return sum(pipeline.micro_batches for pipeline in self.pipelines)

    @property
    def num_layers(self) -> int:
        """Layers of the model."""
        return sum(self.pipelines[0].layers)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def replicas(self) -> int:
        """Number of pipelines."""
        return len(self.pipelines)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def stages(self) -> int:
        """Places of the deepest pipeline: its stages, where a rank holds one."""
        return max(map(self.depth_of, self.pipelines))

    @computed_field  # type: ignore[prop-decorator]
    @property
    def shares(self) -> list[int]:
        """Micro-batches per replica."""
        return [pipeline.micro_batches for pipeline in self.pipelines]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def layers(self) -> list[list[int]]:
        """Half-open layer ranges of the first pipeline's stages."""
        return layer_ranges(self.pipelines[0].layers)


def layer_ranges(counts: tuple[int, ...] | list[int]) -> list[list[int]]:
    """Return the half-open layer ranges of stages that hold `counts` layers."""
    ranges, first = [], 0
    for count in counts:
        ranges.append([first, first + count])
        first += count
    return ranges


def even_split(total: int, parts: int) -> tuple[int, ...]:
    """Split `total` into `parts` counts that differ by at most one, larger ones last.

    The last stage also holds the loss, the first the input; with equal layers either choice is as
    good, so it is fixed here.
    """
    quotient, remainder = divmod(total, parts)
    return tuple(quotient + (part >= parts - remainder) for part in range(parts))


def cell_of(plan: Plan) -> Cell:
    """Return the cell of `trainmaster.cells` that a plan lies in."""
    return Cell(
        plan.schedule, plan.zero, plan.tensor > 1, plan.is_ragged, plan.offload, plan.recompute
    )
