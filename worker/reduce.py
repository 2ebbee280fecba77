"""Gradients of a stage, summed over its replicas: flat buckets, filled in place by the backward,
reduced in a fixed order.

DistributedDataParallel is not used: it averages with equal weights, which is wrong for unequal
shares, and its hooks miss weight gradients that some schedules compute later.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from worker.emulation import ring_s
from worker.launch import Link
from worker.workload import layer_of

NamedParameters = Sequence[tuple[str, nn.Parameter]]


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


class GradientBuckets:
    """The gradients of some parameters as views into flat buffers of at most `bucket_bytes` (or one
    parameter) each.

    Parameters fill buckets from the last to the first: a backward finishes them in that order.
    """

    def __init__(
        self, parameters: NamedParameters, *, bucket_bytes: int, group: dist.ProcessGroup
    ) -> None:
        self._group = group
        self._num_replicas = group.size()
        self._parameters = list(parameters)
        self._buckets = [_bucket(each) for each in _partition(self._parameters, bucket_bytes)]
        self.num_bytes = sum(bucket.numel() * bucket.element_size() for bucket in self._buckets)

    def zero(self) -> None:
        """Begin a new step."""
        for bucket in self._buckets:
            bucket.zero_()

    def scale(self, factor: float) -> None:
        """Multiply all gradients by `factor`."""
        for bucket in self._buckets:
            bucket.mul_(factor)

    def reduce(self, links: dict[int, Link]) -> Synchronisation:
        """Sum over the replicas; afterwards each of them holds the same bits.

        Args:
            links: emulated links to the other replicas of this stage, by rank.
        """
        if self._num_replicas == 1:
            return Synchronisation(0.0, 0)
        started = time.perf_counter()
        works = [
            dist.all_reduce(bucket, group=self._group, async_op=True) for bucket in self._buckets
        ]
        for work in works:
            assert work is not None, "this rank is in its stage's group"
            work.wait()
        delay_s = sum(
            ring_s(links, self._num_replicas, bucket.numel() * bucket.element_size())
            for bucket in self._buckets
        )
        if delay_s > 0:
            time.sleep(delay_s)
        return Synchronisation(time.perf_counter() - started, self.num_bytes)

    def norms(self) -> Norms:
        """Measure all gradients. Each parameter's square is taken alone and summed by layer, so a
        layer's sum has the same bits in every layout.
        """
        gradients = [
            parameter.grad for _, parameter in self._parameters if parameter.grad is not None
        ]
        if not gradients:
            return Norms({}, 0)
        norms = torch.stack(torch._foreach_norm(gradients, 2, torch.float64)).tolist()
        squares: dict[int, float] = {}
        for (name, _), norm in zip(self._parameters, norms, strict=True):
            layer = layer_of(name)
            squares[layer] = squares.get(layer, 0.0) + norm * norm
        return Norms(squares, 0 if all(map(math.isfinite, norms)) else self._num_non_finite())

    def _num_non_finite(self) -> int:
        return sum(int((~torch.isfinite(bucket)).sum()) for bucket in self._buckets)


def _partition(parameters: NamedParameters, bucket_bytes: int) -> list[list[nn.Parameter]]:
    """Cut the parameters, last first, into runs of at most `bucket_bytes` of one dtype; a larger
    parameter is a run of its own.
    """
    runs: list[list[nn.Parameter]] = []
    used = 0
    for _, parameter in reversed(parameters):
        size = parameter.numel() * parameter.element_size()
        if not runs or used + size > bucket_bytes or runs[-1][0].dtype != parameter.dtype:
            runs.append([])
            used = 0
        runs[-1].append(parameter)
        used += size
    return runs


def _bucket(parameters: list[nn.Parameter]) -> torch.Tensor:
    """Return one flat buffer whose slices are from now on the gradients of `parameters`."""
    flat = torch.zeros(
        sum(parameter.numel() for parameter in parameters), dtype=parameters[0].dtype
    )
    offset = 0
    for parameter in parameters:
        parameter.grad = flat[offset : offset + parameter.numel()].view_as(parameter)
        offset += parameter.numel()
    return flat
