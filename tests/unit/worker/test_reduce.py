"""Gradients gather in flat buckets, which are cut and measured the same way everywhere."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from trainmaster.layout import Segment, Stage
from worker.bucket import Sharing
from worker.groups import SegmentGroup
from worker.parameters import Held, part_of, rows_of
from worker.reduce import Gradients, covered_s, partition

ALONE = Sharing(zero=0, num_replicas=1, replica=0)


def parameters_of(*sizes: int) -> list[Held]:
    found = []
    for index, size in enumerate(sizes):
        parameter = nn.Parameter(torch.ones(size))
        name = f"layers.{index}.weight"
        found.append(Held(name, parameter, parameter.detach(), (0,), (size,), counts=True))
    return found


def gradients_of(parameters: list[Held], *, bucket_bytes: int = 1000) -> Gradients:
    """Those of one stage on one rank."""
    num_layers = len(parameters)
    alone = SegmentGroup(Segment(0, num_layers, (0,)), None)
    return Gradients(
        parameters,
        [Stage(0, 0, num_layers)],
        [alone],
        bucket_bytes=bucket_bytes,
        sharing=ALONE,
        links={},
    )


@settings(deadline=None, max_examples=50)
@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=20), limit=st.integers(4, 400))
def test_buckets_hold_each_parameter_once_from_the_last_to_the_first_within_their_limit(
    sizes: list[int], limit: int
) -> None:
    parameters = parameters_of(*sizes)
    runs = partition(parameters, limit)
    assert [one for run in runs for one in run] == list(reversed(parameters))
    sizes_of = [[one.local.numel() * 8 for one in run] for run in runs]
    assert all(len(run) == 1 or sum(run) <= limit for run in sizes_of)
    for before, after in pairwise(sizes_of):
        assert sum(before) + after[0] > limit, "no needless cut"


def backward(parameters: list[Held], factor: float) -> None:
    sum((factor * one.parameter.sum() for one in parameters), torch.zeros(())).backward()


@pytest.mark.parametrize("bucket_bytes", [1000, 1])
def test_micro_batches_gather_and_are_published_as_gradients(bucket_bytes: int) -> None:
    parameters = parameters_of(2, 3)
    gradients = gradients_of(parameters, bucket_bytes=bucket_bytes)
    gradients.begin()
    backward(parameters, 1.0)
    assert all(one.parameter.grad is None for one in parameters), "added up as they come"
    gradients.gather(0, 0)
    gradients.arm(0, 1)
    backward(parameters, 10.0)
    gradients.close(0)
    sync = gradients.finish()
    assert (sync.seconds, sync.num_bytes) == (0.0, 0), "a group of one sends nothing"
    assert gradients.own_norms().squares == pytest.approx({0: 2 * 11.0**2, 1: 3 * 11.0**2})
    assert gradients.summed_norms() == gradients.own_norms()
    gradients.publish(0.5)
    assert [one.parameter.grad.tolist() for one in parameters] == [[5.5] * 2, [5.5] * 3]
    gradients.begin()
    assert all(one.parameter.grad is None for one in parameters)
    gradients.arm(0, 0)
    gradients.close(0)
    gradients.finish()
    assert gradients.own_norms().squares == {0: 0.0, 1: 0.0}, "what no backward reached"


def summed(factors: list[float]) -> float:
    parameters = parameters_of(1)
    gradients = gradients_of(parameters)
    gradients.begin()
    for number, factor in enumerate(factors):
        backward(parameters, factor)
        gradients.gather(0, number)
    gradients.arm(0, len(factors))
    gradients.close(0)
    gradients.finish()
    gradients.publish(1.0)
    assert parameters[0].parameter.grad is not None
    return float(parameters[0].parameter.grad)


@given(order=st.permutations([1e8, 1.0, -1e8, 3e-7, -1.0]))
def test_the_order_of_micro_batches_does_not_change_the_sum(order: list[float]) -> None:
    assert summed(order) == pytest.approx(3e-7, abs=2e-8)


def filled(values: list[float], times: int = 1, factor: float = 1.0) -> Gradients:
    parameters = parameters_of(len(values), len(values))
    gradients = gradients_of(parameters)
    gradients.begin(factor)
    for number in range(times):
        parameters[0].parameter.grad = torch.tensor(values)
        gradients.gather(0, number)
    gradients.arm(0, times)
    gradients.close(0)
    gradients.finish()
    return gradients


def test_values_that_are_not_finite_are_counted_one_by_one() -> None:
    assert filled([math.nan, math.inf, 1.0, 0.0]).own_norms().num_non_finite == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_parameters_of_any_dtype_are_summed_and_rounded_once(dtype: torch.dtype) -> None:
    parameter = nn.Parameter(torch.ones(3, dtype=dtype))
    one = Held("layers.0.w", parameter, parameter.detach(), (0,), (3,), counts=True)
    gradients = gradients_of([one])
    gradients.begin()
    for number, value in enumerate((1.0, math.inf, -math.inf, 0.001953125)):
        finite = value if math.isfinite(value) else 0.0
        parameter.grad = torch.tensor([finite, 1.0, value]).to(dtype)
        gradients.gather(0, number)
    gradients.arm(0, 4)
    gradients.close(0)
    gradients.finish()
    assert gradients.own_norms().num_non_finite == 1, "infinities of both signs"
    gradients.publish(0.5)
    assert parameter.grad is not None
    expected = torch.tensor([1.001953125 / 2, 2.0], dtype=torch.float64).to(dtype)
    assert torch.equal(parameter.grad[:2], expected)


def test_large_finite_gradients_have_a_finite_norm_and_sum() -> None:
    norms = filled([3e38] * 4, times=4).own_norms()
    assert norms.squares[0] == pytest.approx(4 * 12e38**2)
    assert norms.num_non_finite == 0


def test_a_step_is_poisoned_before_anything_leaves() -> None:
    assert filled([1.0, 2.0], factor=10.0).own_norms().squares[0] == pytest.approx(500.0)
    assert filled([1.0, 2.0], factor=math.nan).own_norms().num_non_finite == 4


def test_what_another_rank_speaks_for_is_not_counted_twice() -> None:
    [one] = parameters_of(3)
    silent = Held(one.name, one.parameter, one.local, one.offset, one.shape, counts=False)
    gradients = gradients_of([silent])
    gradients.begin()
    gradients.arm(0, 0)
    backward([silent], 2.0)
    gradients.close(0)
    gradients.finish()
    assert gradients.own_norms().squares == {0: 0.0}


@given(rows=st.integers(0, 40), parts=st.integers(1, 9))
def test_parts_are_all_rows_once_and_as_even_as_they_go(rows: int, parts: int) -> None:
    tensor = torch.arange(rows * 2).reshape(rows, 2)
    found = [part_of(tensor, parts, part) for part in range(parts)]
    assert torch.equal(torch.cat(found), tensor)
    sizes = [len(part) for part in found]
    assert max(sizes) - min(sizes) <= 1
    assert [rows_of(rows, parts, part)[1] for part in range(parts)][-1] == rows


def test_a_number_without_axes_is_the_first_parts() -> None:
    tensor = torch.tensor(3.0)
    assert [part_of(tensor, 3, part).numel() for part in range(3)] == [1, 0, 0]


def test_seconds_that_several_spans_cover_count_once() -> None:
    assert covered_s([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0), (5.5, 5.6)]) == 4.0
    assert covered_s([(2.0, 1.0)]) == 0.0, "what had not begun by then"
    assert covered_s([]) == 0.0
