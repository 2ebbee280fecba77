"""A plan in the making: pipelines over kinds of nodes, and what they share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from trainmaster.cells import Recompute
from trainmaster.schedules import named


class Setting(NamedTuple):
    """What all pipelines of a plan share.

    Attributes:
        zero: how replicas share what they hold alike, 0 to 3.
        bucket: bytes of gradients that are summed at once; None: a segment's as a whole.
        virtual: stages of each place.
        offload: whether the optimizer works in host memory.
        tensor: nodes that make a place together.
    """

    micro_batch: int
    schedule: str = "1f1b"
    zero: int = 0
    recompute: Recompute = "none"
    bucket: float | None = None
    virtual: int = 1
    offload: bool = False
    tensor: int = 1

    @property
    def memory_key(self) -> tuple[object, ...]:
        """What of it decides about compute and memory."""
        return (self.micro_batch, self.schedule, self.zero, self.recompute, self.offload)

    def places(self, stages: int) -> tuple[int, ...]:
        """Return which place of a pipeline holds each of its stages."""
        if self.virtual == 1:
            return tuple(range(stages))
        schedule, ranks = named(self.schedule), stages // self.virtual
        return tuple(schedule.rank_of(ranks, self.virtual, stage) for stage in range(stages))


class Pipe(NamedTuple):
    """`copies` equal pipelines: the kind of node and the number of layers of each stage, and the
    micro-batches of each of the pipelines. With `virtual` stages to a node, it is named for each.
    """

    kinds: tuple[int, ...]
    layers: tuple[int, ...]
    micro_batches: int
    copies: int = 1


@dataclass(frozen=True, slots=True)
class Draft:
    """A plan over kinds."""

    setting: Setting
    pipes: tuple[Pipe, ...]

    @property
    def replicas(self) -> int:
        """Number of pipelines."""
        return sum(pipe.copies for pipe in self.pipes)

    @property
    def nodes(self) -> int:
        """Number of nodes in use; where several make a place, of places."""
        return sum(pipe.copies * len(pipe.kinds) for pipe in self.pipes) // self.setting.virtual

    @property
    def stages(self) -> int:
        """Stages of the longest pipeline."""
        return max(len(pipe.kinds) for pipe in self.pipes) // self.setting.virtual

    @property
    def micro_batches(self) -> int:
        """Micro-batches per step."""
        return sum(pipe.copies * pipe.micro_batches for pipe in self.pipes)

    @property
    def is_alike(self) -> bool:
        """Whether all pipelines are cut alike and take as much."""
        return len({(pipe.layers, pipe.micro_batches) for pipe in self.pipes}) == 1

    def counts(self, kinds: int) -> tuple[int, ...]:
        """Return how many nodes of each of so many kinds are in use."""
        found = [0] * kinds
        for pipe in self.pipes:
            for kind in pipe.kinds:
                found[kind] += pipe.copies
        return tuple(each // self.setting.virtual for each in found)


class Segment(NamedTuple):
    """The half-open range of layers between two cuts of any pipeline, and which stage of each of
    the draft's pipes holds it.
    """

    first: int
    end: int
    stages: tuple[int, ...]


def segments(draft: Draft) -> list[Segment]:
    """Return the segments of a draft, from the last layer down."""
    bounds = []
    for pipe in draft.pipes:
        ends, at = [], 0
        for count in pipe.layers:
            at += count
            ends.append(at)
        bounds.append(ends)
    cuts = sorted({end for ends in bounds for end in ends})
    found = []
    stage = [0] * len(bounds)
    first = 0
    for end in cuts:
        found.append(Segment(first, end, tuple(stage)))
        for at, ends in enumerate(bounds):
            if ends[stage[at]] == end and stage[at] < len(ends) - 1:
                stage[at] += 1
        first = end
    return found[::-1]
