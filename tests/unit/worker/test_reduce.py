"""Gradients gather in flat buckets, which are cut and measured the same way everywhere."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from trainmaster.layout import Segment, Stage
from worker.gradients.bucket import Sharing
from worker.gradients.reduce import Gradients, covered_s, partition
from worker.gradients.sums import FEW
from worker.groups import SegmentGroup
from worker.model.parameters import Held, part_of, rows_of

ALONE = Sharing(zero=0, num_replicas=1, replica=0)


def parameters_of(*sizes: int) -> list[Held]:
    found = []
    for index, size in enumerate(sizes):
        parameter = nn.Parameter(torch.ones(size))
        name = f"layers.{index}.weight"
        found.append(Held(name, parameter, parameter.detach(), (0,), (size,), counts=True))
    return found


IN_PLACE = replace(ALONE, sum_dtype=torch.float32)


def gradients_of(
    parameters: list[Held],
    *,
    bucket_bytes: int = 1000,
    sharing: Sharing = ALONE,
    holds: bool = False,
) -> Gradients:
    """Those of one stage on one rank."""
    num_layers = len(parameters)
    alone = SegmentGroup(Segment(0, num_layers, (0,)), None)
    return Gradients(
        parameters,
        [Stage(0, 0, num_layers)],
        [alone],
        bucket_bytes=bucket_bytes,
        sharing=sharing,
        links={},
        holds=holds,
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


def nothing_more(gradients: Gradients, micro_batch: int = 0) -> None:
    """End a step with a backward that leaves nothing."""
    with gradients.taking(0, micro_batch, is_last=True):
        pass
    gradients.finish()


def backward(parameters: list[Held], factor: float) -> None:
    sum((factor * one.parameter.sum() for one in parameters), torch.zeros(())).backward()


@pytest.mark.parametrize("bucket_bytes", [1000, 1])
@pytest.mark.parametrize("sharing", [ALONE, IN_PLACE])
def test_micro_batches_gather_and_are_published_as_gradients(
    bucket_bytes: int, sharing: Sharing
) -> None:
    parameters = parameters_of(2, 3)
    gradients = gradients_of(parameters, bucket_bytes=bucket_bytes, sharing=sharing)
    gradients.begin()
    with gradients.taking(0, 0, is_last=False):
        backward(parameters, 1.0)
    if sharing is ALONE:
        assert all(one.parameter.grad is None for one in parameters), "added up and given back"
    with gradients.taking(0, 1, is_last=True):
        backward(parameters, 10.0)
    sync = gradients.finish()
    assert (sync.seconds, sync.num_bytes) == (0.0, 0), "a group of one sends nothing"
    assert gradients.own_norms().squares == pytest.approx({0: 2 * 11.0**2, 1: 3 * 11.0**2})
    assert gradients.summed_norms() == gradients.own_norms()
    gradients.publish(0.5)
    assert [one.parameter.grad.tolist() for one in parameters] == [[5.5] * 2, [5.5] * 3]
    gradients.begin()
    assert not any(
        one.parameter.grad is not None and one.parameter.grad.any() for one in parameters
    )
    nothing_more(gradients)
    assert gradients.own_norms().squares == {0: 0.0, 1: 0.0}, "what no backward reached"


def summed(factors: list[float]) -> float:
    parameters = parameters_of(1)
    gradients = gradients_of(parameters)
    gradients.begin()
    for number, factor in enumerate(factors):
        with gradients.taking(0, number, is_last=False):
            backward(parameters, factor)
    nothing_more(gradients, len(factors))
    gradients.publish(1.0)
    assert parameters[0].parameter.grad is not None
    return float(parameters[0].parameter.grad)


def test_large_gradients_are_taken_as_they_come_and_small_ones_together() -> None:
    parameters = parameters_of(3, FEW, 2, 2 * FEW)
    gradients = gradients_of(parameters, bucket_bytes=10**9)
    gradients.begin()
    for number in range(2):
        with gradients.taking(0, number, is_last=False):
            backward(parameters, number + 1.0)
            kept = [one.parameter.grad is not None for one in parameters]
            assert kept == [True, False, True, False]
    with gradients.taking(0, 2, is_last=False):
        backward(parameters[1:3], 4.0)  # a micro-batch that does not reach every small one
    nothing_more(gradients, 3)
    gradients.publish(1.0)
    found = [one.parameter.grad for one in parameters]
    sums = [3.0, 7.0, 7.0, 3.0]
    for one, gradient, each in zip(parameters, found, sums, strict=True):
        assert torch.equal(gradient, torch.full(one.shape, each)), one.name


@pytest.mark.parametrize("sharing", [ALONE, IN_PLACE])
def test_each_step_publishes_its_own_sums(sharing: Sharing) -> None:
    parameters = parameters_of(3, FEW, 2)
    gradients = gradients_of(parameters, bucket_bytes=10**9, sharing=sharing)
    for step in range(1, 4):
        gradients.begin()
        for number in range(2):
            with gradients.taking(0, number, is_last=number == 1):
                backward(parameters, float(step))
        gradients.finish()
        gradients.publish(0.5)
        for one in parameters:
            assert torch.equal(one.parameter.grad, torch.full(one.shape, float(step))), one.name


def test_small_gradients_of_any_shape_or_layout_are_joined_in_order() -> None:
    table = nn.Embedding(4, 2, sparse=True)
    shapes = {"number": (), "matrix": (2, 3), "vector": (3,)}
    made = {name: nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()}
    made["table"] = table.weight
    held = [
        Held(f"layers.0.{name}", each, each.detach(), (0,) * each.dim(), (*each.shape,), True)
        for name, each in made.items()
    ]
    gradients = gradients_of(held)
    factors = {name: torch.randn(each.shape) for name, each in made.items()}
    gradients.begin()
    for number in range(3):
        is_sparse = number == 1
        terms = [(f * made[n]).sum() for n, f in factors.items() if n != "table" or not is_sparse]
        with gradients.taking(0, number, is_last=number == 2):
            sum(terms, table(torch.tensor(2)).sum() if is_sparse else torch.zeros(())).backward()
    gradients.finish()
    gradients.publish(1.0)
    factors["table"] = 2 * factors["table"].double()
    factors["table"][2] += 1.0
    for name, each in made.items():
        times = 1 if name == "table" else 3
        assert each.grad is not None
        assert torch.equal(each.grad, (times * factors[name].double()).float()), name


def test_float32_sums_lie_where_autograd_adds_them_up() -> None:
    parameters = parameters_of(2, FEW)
    gradients = gradients_of(parameters, bucket_bytes=10**9, sharing=IN_PLACE)
    gradients.begin()
    for number in range(3):
        with gradients.taking(0, number, is_last=number == 2):
            places = {one.parameter.grad.data_ptr() for one in parameters}
            backward(parameters, 0.1)
    gradients.finish()
    gradients.publish(1.0)
    tenths = torch.tensor(0.1) + torch.tensor(0.1) + torch.tensor(0.1)
    for one in parameters:
        assert torch.equal(one.parameter.grad, tenths.expand(one.shape)), "added in float32"
    assert {one.parameter.grad.data_ptr() for one in parameters} == places, "nothing was copied"


def test_sums_in_float32_of_large_values_have_a_finite_norm() -> None:
    parameters = parameters_of(4)
    gradients = gradients_of(parameters, sharing=IN_PLACE)
    gradients.begin()
    with gradients.taking(0, 0, is_last=True):
        backward(parameters, 1e30)
    gradients.finish()
    assert gradients.own_norms().squares[0] == pytest.approx(4e60)


@given(order=st.permutations([1e8, 1.0, -1e8, 3e-7, -1.0]))
def test_the_order_of_micro_batches_does_not_change_the_sum(order: list[float]) -> None:
    assert summed(order) == pytest.approx(3e-7, abs=2e-8)


def filled(values: list[float], times: int = 1, factor: float = 1.0) -> Gradients:
    parameters = parameters_of(len(values), len(values))
    gradients = gradients_of(parameters)
    gradients.begin(factor)
    for number in range(times):
        with gradients.taking(0, number, is_last=False):
            parameters[0].parameter.grad = torch.tensor(values)
    nothing_more(gradients, times)
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
        with gradients.taking(0, number, is_last=False):
            parameter.grad = torch.tensor([finite, 1.0, value]).to(dtype)
    nothing_more(gradients, 4)
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
    with gradients.taking(0, 0, is_last=True):
        backward([silent], 2.0)
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


def test_buckets_that_are_held_leave_as_their_layers_are_done() -> None:
    parameters = parameters_of(3, 3, 3, 3)
    gradients = gradients_of(parameters, bucket_bytes=2 * 3 * 8, holds=True)
    gradients.begin()
    with gradients.taking(0, 0, is_last=True) as departures:
        backward(parameters, 1.0)
    assert [share for share, _ in departures] == [0.5, 1.0], "two layers to a bucket, last first"
    assert not any(bucket.has_left for bucket in gradients.buckets)
    for _, send in departures:
        send()
    gradients.finish()
    gradients.publish(1.0)
    assert all(one.parameter.grad.tolist() == [1.0] * 3 for one in parameters)
