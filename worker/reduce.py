"""Gradients of a stage, summed over micro-batches and replicas.

A micro-batch's gradients are float32, and their bits do not depend on the layout. Their sum is kept
in float64 until the update: in whatever order micro-batches and replicas are added, the rounded
result is the same but for about one value in 10^8. So a run's losses do not drift apart between
layouts, which float32 sums let them do within a hundred steps. The price is twice the bytes on the
wire, and eight more per parameter in memory.

DistributedDataParallel is not used: it averages with equal weights, which is wrong for unequal
shares, and its hooks miss weight gradients that some schedules compute later.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist
from torch import nn

from worker.emulation import ring_s
from worker.launch import Link
from worker.workload import layer_of

NamedParameters = Sequence[tuple[str, nn.Parameter]]
SUM_DTYPE: Final = torch.float64


@dataclass(frozen=True, slots=True)
class Norms:
    """Squared 2-norms of gradients by layer, in float64, and how many values are not finite."""

    squares: dict[int, float]
    num_non_finite: int


@dataclass(frozen=True, slots=True)
class Synchronisation:
    """What summing gradients over replicas took; nothing when there is one replica."""

    seconds: float
    num_bytes: int


class _Bucket:
    """Some parameters: their gradients of one micro-batch, which a backward fills in place, and the
    sums of all of them; each a flat buffer.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        num_elements = sum(parameter.numel() for parameter in parameters)
        self.gradients = torch.zeros(num_elements, dtype=parameters[0].dtype)
        self.sums = torch.zeros(num_elements, dtype=SUM_DTYPE)
        self.views: list[torch.Tensor] = []
        offset = 0
        for parameter in parameters:
            end = offset + parameter.numel()
            parameter.grad = self.gradients[offset:end].view_as(parameter)
            self.views.append(self.sums[offset:end])
            offset = end


class GradientBuckets:
    """The gradients of some parameters in buckets of at most `bucket_bytes` (or one parameter) on
    the wire.

    Parameters fill buckets from the last to the first: a backward finishes them in that order.
    """

    def __init__(
        self, parameters: NamedParameters, *, bucket_bytes: int, group: dist.ProcessGroup
    ) -> None:
        self._group = group
        self._num_replicas = group.size()
        runs = _partition(parameters, bucket_bytes)
        self._buckets = [_Bucket([parameter for _, parameter in run]) for run in runs]
        self._layers = [layer_of(name) for run in runs for name, _ in run]
        self.num_bytes = sum(bucket.sums.nbytes for bucket in self._buckets)

    def zero(self) -> None:
        """Begin a new step."""
        for bucket in self._buckets:
            bucket.gradients.zero_()
            bucket.sums.zero_()

    def gather(self) -> None:
        """Add what the backward of one micro-batch left in the parameters' gradients."""
        for bucket in self._buckets:
            bucket.sums.add_(bucket.gradients)
            bucket.gradients.zero_()

    def scale(self, factor: float) -> None:
        """Multiply all sums by `factor`."""
        for bucket in self._buckets:
            bucket.sums.mul_(factor)

    def publish(self, factor: float) -> None:
        """Make the sums times `factor` the parameters' gradients, for the optimizer to apply."""
        for bucket in self._buckets:
            torch.mul(bucket.sums, factor, out=bucket.gradients)

    def reduce(self, links: dict[int, Link]) -> Synchronisation:
        """Sum over the replicas; afterwards each of them holds the same bits.

        Args:
            links: emulated links to the other replicas of this stage, by rank.
        """
        if self._num_replicas == 1:
            return Synchronisation(0.0, 0)
        started = time.perf_counter()
        works = [
            dist.all_reduce(bucket.sums, group=self._group, async_op=True)
            for bucket in self._buckets
        ]
        for work in works:
            assert work is not None, "this rank is in its stage's group"
            work.wait()
        delay_s = sum(
            ring_s(links, self._num_replicas, bucket.sums.nbytes) for bucket in self._buckets
        )
        if delay_s > 0:
            time.sleep(delay_s)
        return Synchronisation(time.perf_counter() - started, self.num_bytes)

    def norms(self) -> Norms:
        """Measure all sums. Each parameter's square is taken alone and added up by layer, so that a
        layer's has the same bits in every layout.
        """
        views = [view for bucket in self._buckets for view in bucket.views]
        if not views:
            return Norms({}, 0)
        norms = torch.stack(torch._foreach_norm(views)).tolist()
        squares: dict[int, float] = {}
        for layer, norm in zip(self._layers, norms, strict=True):
            squares[layer] = squares.get(layer, 0.0) + norm * norm
        return Norms(squares, 0 if all(map(math.isfinite, norms)) else self._num_non_finite())

    def _num_non_finite(self) -> int:
        return sum(int((~torch.isfinite(bucket.sums)).sum()) for bucket in self._buckets)


def _partition(
    parameters: NamedParameters, bucket_bytes: int
) -> list[list[tuple[str, nn.Parameter]]]:
    """Cut the parameters, last first, into runs of one dtype whose sums take at most
    `bucket_bytes`; a larger parameter is a run of its own.
    """
    runs: list[list[tuple[str, nn.Parameter]]] = []
    used = 0
    for name, parameter in reversed(parameters):
        size = parameter.numel() * SUM_DTYPE.itemsize
        if not runs or used + size > bucket_bytes or runs[-1][0][1].dtype != parameter.dtype:
            runs.append([])
            used = 0
        runs[-1].append((name, parameter))
        used += size
    return runs
