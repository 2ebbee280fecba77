"""Activations that are computed again: the same bits, from less that was kept."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.utils._python_dispatch import TorchDispatchMode

from trainmaster.cells import RECOMPUTES, Recompute
from worker.model.draws import Draws
from worker.model.recompute import computed_once, running
from worker.model.workload import StageLayers


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))


def layer() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.5))


def trained(recompute: Recompute) -> tuple[list[torch.Tensor], Counter[str]]:
    """Gradients, and what was computed."""
    draws = Draws(seed=3, first_micro_batch=0)
    layers = StageLayers({0: layer(), 1: layer()}, run=running(recompute), draws=draws)
    draws.begin(1)
    draws.choose(0)
    with Counting() as counting:
        output = layers(torch.ones(4, 8).cumsum(0))
        torch.rand(())  # somebody else draws in between
        output.square().sum().backward()
    return [parameter.grad for parameter in layers.parameters()], counting.seen


@pytest.mark.parametrize(
    ("recompute", "products", "norms"), [("none", 1, 1), ("selective", 1, 2), ("full", 2, 2)]
)
def test_bits_are_the_same_and_only_what_is_not_kept_is_computed_again(
    recompute: Recompute, products: int, norms: int
) -> None:
    gradients, seen = trained(recompute)
    expected, _ = trained("none")
    assert all(torch.equal(*pair) for pair in zip(gradients, expected, strict=True))
    assert seen["aten.addmm.default"] == 2 * products
    assert seen["aten.native_layer_norm.default"] == 2 * norms


def test_a_split_backward_computes_a_layer_again_once_in_each_half() -> None:
    module, x = layer(), torch.ones(4, 8, requires_grad=True)
    output = running("full")(module, x).sum()
    with Counting() as inputs:
        _, groups = stage_backward_input((output,), None, [x], module.parameters())
    with Counting() as weights, computed_once():
        stage_backward_weight(module.parameters(), groups)
    assert [each.seen["aten.native_layer_norm.default"] for each in (inputs, weights)] == [1, 1]
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_draws_depend_on_seed_pass_micro_batch_and_layer_alone() -> None:
    def drawn(seed: int, first: int, number: int, micro_batch: int, index: int) -> float:
        draws = Draws(seed, first)
        draws.begin(number)
        draws.choose(micro_batch)
        draws.seed(index)
        return float(torch.rand((), dtype=torch.float64))

    assert drawn(1, 0, 4, 5, 2) == drawn(1, 3, 4, 2, 2), "the same micro-batch of the pass"
    others = [(2, 0, 4, 5, 2), (1, 0, 3, 5, 2), (1, 0, 4, 4, 2), (1, 0, 4, 5, 1)]
    assert len({drawn(1, 0, 4, 5, 2), *(drawn(*each) for each in others)}) == 5


def test_every_kind_is_known() -> None:
    assert RECOMPUTES == ("none", "selective", "full")
