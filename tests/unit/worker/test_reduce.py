"""Gradients gather in flat buckets, which are cut and measured the same way everywhere."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import cast

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from worker.reduce import GradientBuckets, _partition


class Alone:
    """A group of one: nothing is sent."""

    def size(self) -> int:
        return 1


ALONE = cast("dist.ProcessGroup", Alone())


def parameters_of(*sizes: int) -> list[tuple[str, nn.Parameter]]:
    return [
        (f"layers.{index}.weight", nn.Parameter(torch.ones(size)))
        for index, size in enumerate(sizes)
    ]


@settings(deadline=None, max_examples=50)
@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=20), limit=st.integers(4, 400))
def test_buckets_hold_each_parameter_once_from_the_last_to_the_first_within_their_limit(
    sizes: list[int], limit: int
) -> None:
    parameters = parameters_of(*sizes)
    runs = _partition(parameters, limit)
    flat = [name for run in runs for name, _ in run]
    assert flat == [name for name, _ in reversed(parameters)]
    sizes_of = [[parameter.numel() * 8 for _, parameter in run] for run in runs]
    assert all(len(run) == 1 or sum(run) <= limit for run in sizes_of)
    for before, after in pairwise(sizes_of):
        assert sum(before) + after[0] > limit, "no needless cut"


def backward(parameters: list[tuple[str, nn.Parameter]], factor: float) -> None:
    sum((factor * parameter.sum() for _, parameter in parameters), torch.zeros(())).backward()


def test_micro_batches_gather_and_are_published_as_gradients() -> None:
    parameters = parameters_of(2, 3)
    buckets = GradientBuckets(parameters, bucket_bytes=1000, group=ALONE)
    gradients = [parameter.grad for _, parameter in parameters]
    for factor in (1.0, 10.0):
        backward(parameters, factor)
        buckets.gather()
    assert buckets.norms().squares == pytest.approx({0: 2 * 11.0**2, 1: 3 * 11.0**2})
    buckets.publish(0.5)
    assert [parameter.grad for _, parameter in parameters] == gradients, "filled in place"
    assert gradients[1] is not None
    assert gradients[1].tolist() == [5.5] * 3
    buckets.zero()
    assert buckets.norms().squares == {0: 0.0, 1: 0.0}
    assert gradients[1].tolist() == [0.0] * 3


@given(order=st.permutations([1e8, 1.0, -1e8, 3e-7, -1.0]))
def test_the_order_of_micro_batches_does_not_change_the_sum(order: list[float]) -> None:
    parameters = parameters_of(1)
    buckets = GradientBuckets(parameters, bucket_bytes=1000, group=ALONE)
    for factor in order:
        backward(parameters, factor)
        buckets.gather()
    buckets.publish(1.0)
    assert parameters[0][1].grad is not None
    assert float(parameters[0][1].grad) == pytest.approx(3e-7, abs=2e-8)


def test_values_that_are_not_finite_are_counted_one_by_one() -> None:
    parameters = parameters_of(4, 4)
    buckets = GradientBuckets(parameters, bucket_bytes=1000, group=ALONE)
    gradient = parameters[0][1].grad
    assert gradient is not None
    gradient[:3] = torch.tensor([math.nan, math.inf, 1.0])
    buckets.gather()
    assert buckets.norms().num_non_finite == 2


def test_large_finite_gradients_have_a_finite_norm_and_sum() -> None:
    parameters = parameters_of(4)
    buckets = GradientBuckets(parameters, bucket_bytes=1000, group=ALONE)
    gradient = parameters[0][1].grad
    assert gradient is not None
    for _ in range(4):
        gradient.fill_(3e38)
        buckets.gather()
    assert buckets.norms().squares[0] == pytest.approx(4 * 12e38**2)
    assert buckets.norms().num_non_finite == 0


def test_a_group_of_one_sends_nothing() -> None:
    buckets = GradientBuckets(parameters_of(4), bucket_bytes=1000, group=ALONE)
    sync = buckets.reduce({})
    assert (sync.seconds, sync.num_bytes) == (0.0, 0)
