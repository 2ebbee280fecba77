"""What a workload is made of, and what is wrong with one that cannot be trained."""

from __future__ import annotations

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


def weightless(toy: Toy) -> None:
    toy.loss = lambda output, target: (output.sum(), 0.0)  # type: ignore[method-assign]


BREAKS = {
    f.__name__: f
    for f in (
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
        ("loss_by_sample", "a tensor without axes"),
        ("weightless", "is not above 0"),
    ],
)
def test_what_cannot_be_trained_is_told_before_it_is_tried(broken: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        describe(HERE + "toy", {"broken": broken}, "workload")


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
