"""Gradients gather in flat buckets, which are cut and measured the same way everywhere."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
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
    flat = [parameter for run in runs for parameter in run]
    assert [id(p) for p in flat] == [id(p) for _, p in reversed(parameters)]
    assert all(len(run) == 1 or sum(p.numel() for p in run) * 4 <= limit for run in runs)
    for before, after in itertools.pairwise(runs):
        assert (sum(p.numel() for p in before) + after[0].numel()) * 4 > limit, "no needless cut"


def test_a_backward_fills_the_buckets_in_place() -> None:
    parameters = parameters_of(2, 3)
    buckets = GradientBuckets(parameters, bucket_bytes=1000, group=ALONE)
    views = [parameter.grad for _, parameter in parameters]
    for factor in (1.0, 10.0):
        sum((factor * p.sum() for _, p in parameters), torch.zeros(())).backward()
    assert [parameter.grad for _, parameter in parameters] == views
    buckets.scale(0.5)
    assert parameters[1][1].grad is not None
    assert parameters[1][1].grad.tolist() == [5.5] * 3
    assert buckets.norms().squares == pytest.approx({0: 2 * 5.5**2, 1: 3 * 5.5**2})
    buckets.zero()
    assert buckets.norms().squares == {0: 0.0, 1: 0.0}


def test_values_that_are_not_finite_are_counted_one_by_one() -> None:
    parameters = parameters_of(4, 4)
    buckets = GradientBuckets(parameters, bucket_bytes=1000, group=ALONE)
    gradient = parameters[0][1].grad
    assert gradient is not None
    gradient[:3] = torch.tensor([math.nan, math.inf, 1.0])
    assert buckets.norms().num_non_finite == 2


def test_large_finite_gradients_have_a_finite_norm() -> None:
    parameters = parameters_of(4)
    buckets = GradientBuckets(parameters, bucket_bytes=1000, group=ALONE)
    assert parameters[0][1].grad is not None
    parameters[0][1].grad.fill_(1e30)
    assert buckets.norms().squares[0] == pytest.approx(4e60)
    assert buckets.norms().num_non_finite == 0


def test_the_module_measures_without_a_network(tmp_path: Path) -> None:
    buckets = GradientBuckets(parameters_of(4), bucket_bytes=1000, group=ALONE)
    sync = buckets.reduce({})
    assert (sync.seconds, sync.num_bytes) == (0.0, 0)
