"""What a workload is made of, and what is wrong with one that cannot be trained."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from trainmaster.errors import SpecError
from worker.describe import describe

HERE = f"{__name__}:"
Sample = tuple[torch.Tensor, torch.Tensor]


class Toy:
    """A workload of two linear layers; each test breaks one thing of it."""

    def __init__(self) -> None:
        self.builders: list[Callable[[], Any]] = [
            lambda: nn.Linear(4, 8),
            lambda: nn.Linear(8, 2),
        ]
        self.samples: list[Any] = [(torch.zeros(4), torch.tensor(1))] * 10

    def layers(self) -> list[Callable[[], Any]]:
        return self.builders

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> Any:
        return nn.functional.cross_entropy(output, target, reduction="sum"), target.numel()

    def dataset(self) -> list[Any]:
        return self.samples


class WithoutAxis(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(0)


class Pair(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return x, x


def greedy(toy: Toy) -> None:
    def wants_it_all() -> nn.Module:
        raise MemoryError

    toy.builders[1] = wants_it_all


def no_layers(toy: Toy) -> None:
    toy.builders = []


def no_module(toy: Toy) -> None:
    toy.builders[1] = lambda: "layer"


def running_state(toy: Toy) -> None:
    toy.builders.insert(1, lambda: nn.BatchNorm1d(8))


def loses_the_sample_axis(toy: Toy) -> None:
    toy.builders.append(WithoutAxis)


def gives_a_pair(toy: Toy) -> None:
    toy.builders.append(Pair)


def no_samples(toy: Toy) -> None:
    toy.samples = []


def bare_sample(toy: Toy) -> None:
    toy.samples = [torch.zeros(4)]


def loss_alone(toy: Toy) -> None:
    toy.loss = lambda output, target: output.sum()  # type: ignore[method-assign]


def loss_by_sample(toy: Toy) -> None:
    toy.loss = lambda output, target: (output, 1.0)  # type: ignore[method-assign]


def loss_of_three(toy: Toy) -> None:
    toy.loss = lambda output, target: (output.sum(), 1.0, {})  # type: ignore[method-assign]


def loss_in_whole_numbers(toy: Toy) -> None:
    toy.loss = lambda output, target: (target.sum(), 1.0)  # type: ignore[method-assign]


def loss_without_gradient(toy: Toy) -> None:
    toy.loss = lambda output, target: (output.detach().sum(), 1.0)  # type: ignore[method-assign]


def loss_raises(toy: Toy) -> None:
    toy.loss = lambda output, target: output[7]  # type: ignore[method-assign]


def nan_weight(toy: Toy) -> None:
    toy.loss = lambda output, target: (output.sum(), float("nan"))  # type: ignore[method-assign]


def negative_weight(toy: Toy) -> None:
    toy.loss = lambda output, target: (output.sum(), -2)  # type: ignore[method-assign]


def weight_in_words(toy: Toy) -> None:
    toy.loss = lambda output, target: (output.sum(), "two")  # type: ignore[method-assign]


def no_fit(toy: Toy) -> None:
    toy.builders[1] = lambda: nn.Linear(7, 2)


def builder_raises(toy: Toy) -> None:
    toy.builders[1] = lambda: nn.Linear(8, toy.builders)  # type: ignore[arg-type]


class UntoldError(Exception):
    def __str__(self) -> str:
        raise ValueError("nor why")


def builder_cannot_say(toy: Toy) -> None:
    def build() -> nn.Module:
        raise UntoldError

    toy.builders[1] = build


def builder_exits(toy: Toy) -> None:
    toy.builders[1] = lambda: sys.exit("enough")


def whole_numbers(toy: Toy) -> None:
    toy.builders.insert(1, lambda: Whole())


def complex_parameter(toy: Toy) -> None:
    toy.builders[1] = lambda: nn.Linear(8, 2, dtype=torch.complex64)


def float8_parameter(toy: Toy) -> None:
    toy.builders[1] = lambda: nn.Linear(8, 2).to(torch.float8_e4m3fn)


def lazy(toy: Toy) -> None:
    toy.builders[1] = lambda: nn.LazyLinear(2)


def shared_parameter(toy: Toy) -> None:
    tied = nn.Linear(8, 8)
    toy.builders[1:1] = [lambda: nn.Sequential(tied), lambda: nn.Sequential(nn.ReLU(), tied)]


def other_weights_each_time(toy: Toy) -> None:
    toy.builders[1] = lambda: Drawn()


def endless_weights(toy: Toy) -> None:
    toy.builders[1] = lambda: Drawn(torch.inf)


def unequal_samples(toy: Toy) -> None:
    toy.samples = [*toy.samples, (torch.zeros(5), torch.tensor(1))]


class Redrawn(list[Any]):
    def __getitem__(self, index: Any) -> Any:
        return torch.rand(4), torch.tensor(1)


def samples_drawn_anew(toy: Toy) -> None:
    toy.samples = Redrawn(toy.samples)


def optimizer_of(toy: Toy, optimizer: Callable[[Any], Any]) -> None:
    toy.optimizer = optimizer  # type: ignore[attr-defined]


def no_optimizer(toy: Toy) -> None:
    optimizer_of(toy, lambda params: "sgd")


def optimizer_raises(toy: Toy) -> None:
    optimizer_of(toy, lambda params: torch.optim.SGD([], lr=0.1))


def optimizer_forgets(toy: Toy) -> None:
    optimizer_of(toy, lambda params: torch.optim.SGD([params[0][1]], lr=0.1))


def optimizer_keeps_a_list(toy: Toy) -> None:
    optimizer_of(toy, lambda params: Listing([each for _, each in params], {"lr": 0.1}))


def optimizer_wants_a_closure(toy: Toy) -> None:
    optimizer_of(toy, lambda params: torch.optim.LBFGS([each for _, each in params]))


class Listing(torch.optim.SGD):
    def __init__(self, params: Any, defaults: dict[str, float]) -> None:
        super().__init__(params, **defaults)

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["history"] = [1.0]


class Whole(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.long()


class Drawn(nn.Module):
    drawn = 0.0

    def __init__(self, value: float | None = None) -> None:
        super().__init__()
        Drawn.drawn += 1.0
        self.weight = nn.Parameter(torch.full((8, 2), Drawn.drawn if value is None else value))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def weightless(toy: Toy) -> None:
    toy.loss = lambda output, target: (output.sum(), 0.0)  # type: ignore[method-assign]


BREAKS = {
    f.__name__: f
    for f in (
        greedy,
        no_layers,
        no_module,
        running_state,
        loses_the_sample_axis,
        gives_a_pair,
        no_samples,
        bare_sample,
        loss_alone,
        loss_by_sample,
        weightless,
        loss_of_three,
        loss_in_whole_numbers,
        loss_without_gradient,
        loss_raises,
        nan_weight,
        negative_weight,
        weight_in_words,
        no_fit,
        builder_raises,
        builder_cannot_say,
        builder_exits,
        whole_numbers,
        complex_parameter,
        float8_parameter,
        lazy,
        shared_parameter,
        other_weights_each_time,
        endless_weights,
        unequal_samples,
        samples_drawn_anew,
        no_optimizer,
        optimizer_raises,
        optimizer_forgets,
        optimizer_keeps_a_list,
        optimizer_wants_a_closure,
    )
}


def toy(*, params: dict[str, Any], data: str) -> Toy:
    built = Toy()
    if params:
        BREAKS[params["broken"]](built)
    return built


def test_it_counts_layers_parameters_and_samples() -> None:
    info = describe(HERE + "toy", {}, "workload")
    assert (info.num_layers, info.num_parameters, info.num_samples) == (2, 58, 10)
    assert info.weight_unit == "samples"
    assert [layer["parameters"] for layer in info.layers] == [40, 18]
    assert [layer["output_shape"] for layer in info.layers] == [[8], [2]]
    assert [layer["forward_flops"] for layer in info.layers] == [2 * 4 * 8, 2 * 8 * 2]
    assert len(info.code_sha256) == 64
    assert len(info.environment_sha256 or "") == 64
    assert "torch" in info.environment


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("no_layers", "layers\\(\\) gives no builders"),
        ("no_module", "the builder of layer 1 gives str, not a torch.nn.Module"),
        ("running_state", "layer 1 keeps state in buffer 'running_mean'"),
        ("loses_the_sample_axis", "the first axis must stay the samples'"),
        ("gives_a_pair", "layer 2 gives tuple; a layer must give one tensor"),
        ("no_samples", "holds no samples"),
        ("bare_sample", "a sample must be a tuple of two tensors"),
        ("loss_alone", "must give a pair"),
        ("loss_by_sample", r"a tensor torch.float32 \[2, 2\] as its sum; .* tensor without axes"),
        ("weightless", "is not above 0"),
        ("loss_of_three", r"loss\(\) gives 3 values; it must give a pair \(sum, weight\)"),
        ("loss_in_whole_numbers", r"gives a tensor torch.int64 \[\] as its sum"),
        ("loss_without_gradient", "a sum without a gradient"),
        ("loss_raises", r"loss\(\), given torch.float32 \[2, 2\] .* raised IndexError"),
        ("nan_weight", "the weight nan; it must be a number from 0 on"),
        ("negative_weight", "the weight -2"),
        ("weight_in_words", "gives str as its weight; it must be one number"),
        ("no_fit", r"layer 1, given torch.float32 \[2, 8\], raised RuntimeError"),
        ("builder_raises", "the builder of layer 1 raised TypeError"),
        ("builder_cannot_say", "the builder of layer 1 raised UntoldError"),
        ("builder_exits", "the builder of layer 1 raised SystemExit: enough"),
        ("whole_numbers", "layer 1 gives torch.int64, which the next layer cannot be"),
        ("complex_parameter", "layer 1: parameter 'weight' is complex64, .* no backend can reduce"),
        ("float8_parameter", "layer 1: parameter 'weight' is float8_e4m3fn"),
        ("lazy", "layer 1: parameter 'weight' has no values"),
        ("shared_parameter", r"layers 1 and 2 share a parameter \('0.weight' and '1.weight'\)"),
        ("other_weights_each_time", "layer 1: parameter 'weight' begins with other values"),
        ("endless_weights", "layer 1: parameter 'weight' begins with values that are not finite"),
        ("unequal_samples", r"has the input torch.float32 \[5\], but .* has torch.float32 \[4\]"),
        ("samples_drawn_anew", "gives another sample when it is asked for again"),
        ("no_optimizer", r"optimizer\(\) gives str, not a torch.optim.Optimizer"),
        ("optimizer_raises", r"optimizer\(\) raised ValueError: optimizer got an empty"),
        ("optimizer_forgets", r"optimizer\(\) leaves out layers.1.bias"),
        ("optimizer_keeps_a_list", "keeps 'history' of layers.1.weight as list"),
        ("optimizer_wants_a_closure", r"the optimizer's step\(\) raised TypeError"),
    ],
)
def test_what_cannot_be_trained_is_told_before_it_is_tried(broken: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        describe(HERE + "toy", {"broken": broken}, "workload")


def test_too_little_memory_is_a_problem_of_the_params() -> None:
    with pytest.raises(SpecError, match="takes more memory than this node has") as caught:
        describe(HERE + "toy", {"broken": "greedy"}, "workload")
    assert [each.path for each in caught.value.problems] == ["params"]


def test_the_byte_gpt_describes_itself(tmp_path: Any) -> None:
    path = tmp_path / "text"
    path.write_bytes(bytes(1000))
    info = describe(
        "worker.workloads.byte_gpt:workload",
        {"layers": 2, "width": 16, "heads": 2, "context": 9},
        f"tokens:{path}",
    )
    assert (info.num_layers, info.num_samples, info.weight_unit) == (2, 111, "tokens")
    assert info.data_sha256 is not None
    assert info.layers[-1]["output_shape"] == [9, 256]


def test_what_a_layout_must_know_of_a_workload_is_told() -> None:
    params = {"layers": 2, "width": 16, "heads": 4, "context": 8}
    told = describe("worker.workloads.byte_gpt:workload", params, "text:stdlib")
    assert (told.tensor_units, told.brings_optimizer) == (4, False)
    told = describe("tests.distributed.digits:workload", {"momentum": True}, "workload")
    assert (told.tensor_units, told.brings_optimizer) == (None, True)
