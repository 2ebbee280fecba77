"""The learning rate is a function of the step; the optimizer's state has names."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from trainmaster.spec import OptimizerSpec
from worker.optimizer import Optimizer, lr_factor
from worker.workloads.byte_gpt import workload


def factor(step: int, *, samples: int = 64, windows: Any = (), **spec: Any) -> float:
    return lr_factor(
        step, OptimizerSpec(**spec), steps=100, samples_per_step=samples, windows=windows
    )


def test_it_is_constant_unless_something_else_is_asked_for() -> None:
    assert {factor(step) for step in (1, 50, 100)} == {1.0}


def test_warm_up_rises_linearly_and_reaches_the_whole_rate_at_its_last_step() -> None:
    assert [factor(step, warmup_steps=4) for step in range(1, 6)] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_the_rate_is_scaled_to_what_a_step_consumes() -> None:
    assert factor(1, samples=256, base_batch=64) == 4.0
    assert factor(1, samples=256, base_batch=64, lr_scaling="sqrt") == 2.0
    assert factor(1, samples=256, base_batch=64, lr_scaling="none") == 1.0
    assert factor(1, samples=256) == 1.0, "without a base batch nothing is scaled"


def test_cosine_falls_from_the_end_of_warm_up_to_the_least_rate_at_the_last_step() -> None:
    spec = {"warmup_steps": 20, "decay": "cosine", "min_lr_ratio": 0.1}
    assert factor(20, **spec) == 1.0
    assert factor(60, **spec) == pytest.approx(0.55)
    assert factor(100, **spec) == pytest.approx(0.1)
    rates = [factor(step, **spec) for step in range(20, 101)]
    assert rates == sorted(rates, reverse=True)


def test_linear_decay_is_halfway_at_half_the_way() -> None:
    assert factor(50, decay="linear", min_lr_ratio=0.0) == pytest.approx(0.5)
    assert factor(100, decay="linear", min_lr_ratio=0.0) == 0.0


def test_windows_multiply_from_their_first_to_their_last_step() -> None:
    windows = [(10, 20, 0.5), (15, 30, 0.5)]
    seen = [factor(step, windows=windows) for step in (9, 10, 15, 20, 21, 30, 31)]
    assert seen == [1.0, 0.5, 0.25, 0.25, 0.5, 0.5, 1.0]


def one_layer() -> list[tuple[str, nn.Parameter]]:
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    for parameter in layer.parameters():
        parameter.grad = torch.ones_like(parameter)
    return [(f"layers.0.{name}", parameter) for name, parameter in layer.named_parameters()]


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_an_optimizer_that_adopts_the_state_of_another_goes_on_as_that_one(name: str) -> None:
    spec = OptimizerSpec.model_validate({"name": name, "lr": 0.1, "momentum": 0.9})
    bring_none = workload(params={}, data="workload")
    straight, first = one_layer(), one_layer()
    whole, before = Optimizer(straight, spec, bring_none), Optimizer(first, spec, bring_none)
    whole.step()
    before.step()
    after = Optimizer(first, spec, bring_none)
    after.adopt({key: tensor.clone() for key, tensor in before.tensors().items()})
    whole.step()
    after.step()
    for (_, expected), (_, seen) in zip(straight, first, strict=True):
        assert torch.equal(expected, seen)


def test_state_is_named_by_parameter_and_key() -> None:
    optimizer = Optimizer(one_layer(), OptimizerSpec(), workload(params={}, data="workload"))
    assert optimizer.tensors() == {}
    optimizer.step()
    assert sorted(optimizer.tensors()) == [
        f"layers.0.{name}/{key}"
        for name in ("bias", "weight")
        for key in ("exp_avg", "exp_avg_sq", "step")
    ]


def test_decay_shrinks_matrices_and_leaves_biases_alone() -> None:
    parameters = dict(one_layer())
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    spec = OptimizerSpec(lr=0.1, weight_decay=0.5)
    Optimizer(parameters.items(), spec, workload(params={}, data="workload")).step()
    assert torch.equal(parameters["layers.0.bias"], before["layers.0.bias"])
    shrunk = before["layers.0.weight"] * (1 - 0.1 * 0.5)
    assert torch.allclose(parameters["layers.0.weight"], shrunk)


def test_setting_the_rate_is_relative_to_the_optimizer_s_own() -> None:
    optimizer = Optimizer(one_layer(), OptimizerSpec(lr=0.2), workload(params={}, data="workload"))
    assert optimizer.set_lr(0.5) == pytest.approx(0.1)
    assert math.isclose(optimizer.set_lr(1.0), 0.2)
