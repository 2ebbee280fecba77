"""Ordered sums have the same bits whoever adds up what, in whatever order it is done."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from trainmaster.layout import leaves_of
from trainmaster.plan import ParallelAsk
from trainmaster.resolution import resolve
from worker.gradients.ordered import OrderedSums, cover, covers_of
from worker.model.parameters import Held


def sums_of(leaves: list[int], values: list[float]) -> OrderedSums:
    parameter = nn.Parameter(torch.ones(1, dtype=torch.float64))
    held = Held("layers.0.w", parameter, parameter.detach(), (0,), (1,), counts=True)
    sums = OrderedSums([held])
    sums.open()
    for leaf in leaves:
        parameter.grad = torch.tensor([values[leaf]], dtype=torch.float64)
        sums.take_all()
        sums.end(leaf)
    return sums


@settings(deadline=None, max_examples=60)
@given(
    shares=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    passes=st.integers(1, 3),
    draw=st.randoms(use_true_random=False),
)
def test_any_shares_in_any_order_give_the_bits_of_one_replica(
    shares: list[int], passes: int, draw: random.Random
) -> None:
    count = sum(shares)
    values = [draw.uniform(-1, 1) * 10.0 ** draw.randint(-30, 30) for _ in range(count * passes)]
    ask = ParallelAsk(replicas=len(shares), micro_batch=1, shares=shares)
    plan = resolve(ask, num_layers=1, global_batch=count)
    covers = covers_of(plan, passes)
    most, each = max(map(len, covers)), []
    for replica in range(len(shares)):
        leaves = leaves_of(plan, replica, passes)
        draw.shuffle(leaves)
        each.append(sums_of(leaves, values))
    received = torch.stack([sums.packed(most) for sums in each])
    alone = sums_of(list(range(count * passes)), values).total().tolist()
    assert all(sums.complete(received.clone(), covers).tolist() == alone for sums in each)


def test_plain_sums_of_such_values_differ() -> None:
    values = [1e16, 1.0, -1e16, 1.0]
    assert sum(values) != sum(sorted(values))
    assert sums_of([0, 1, 2, 3], values).total().item() == (1e16 + 1.0) + (-1e16 + 1.0)


@pytest.mark.parametrize(
    ("leaves", "subtrees"),
    [
        (range(8), [(0, 8)]),
        (range(4, 8), [(4, 4)]),
        (range(3, 8), [(3, 1), (4, 4)]),
        (range(1, 7), [(1, 1), (2, 2), (4, 2), (6, 1)]),
        (range(5), [(0, 4), (4, 1)]),
        ([0, 1, 4, 5], [(0, 2), (4, 2)]),
    ],
)
def test_neighbouring_subtrees_of_one_size_make_one(leaves, subtrees) -> None:
    assert list(cover(leaves)) == subtrees
