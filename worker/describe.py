"""What a workload is made of: built layer by layer, tried on one sample, and told to the control
plane, which has no torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from trainmaster.errors import Problem, SpecError
from trainmaster.plugins import (
    Dataset,
    WithOptimizer,
    WithTensorParallel,
    Workload,
    load_workload,
)
from trainmaster.wire import WorkloadInfo
from worker import settings
from worker.workload import build_layer, code_sha256


def describe(workload: str, params: dict[str, Any], data: str) -> WorkloadInfo:
    """Build a workload and run one sample through it.

    Raises:
        SpecError: it cannot be built, lacks a part of the protocol, or cannot be trained right by
            this version.
    """
    torch.set_num_threads(settings.read().num_threads)
    built = load_workload(workload, params=params, data=data)
    dataset = built.dataset()
    if len(dataset) == 0:
        raise _problem("the dataset holds no samples", path="data.source")
    layers = _layers(built, dataset)
    return WorkloadInfo(
        num_layers=len(layers),
        layers=layers,
        num_parameters=sum(layer["parameters"] for layer in layers),
        num_samples=len(dataset),
        weight_unit="tokens" if getattr(built, "weight_unit", None) == "tokens" else "samples",
        code_sha256=code_sha256(workload),
        data_sha256=getattr(dataset, "sha256", None),
        tensor_units=built.tensor_units if isinstance(built, WithTensorParallel) else None,
        brings_optimizer=isinstance(built, WithOptimizer),
    )


def _layers(workload: Workload, dataset: Dataset) -> list[dict[str, Any]]:
    """Build, run and forget one layer after the other, so that a model larger than memory can be
    described.
    """
    builders = workload.layers()
    if not builders:
        raise _problem("layers() gives no builders")
    x_1, target_1 = _first_sample(dataset)
    found = []
    for index, builder in enumerate(builders):
        module = build_layer(builder, index).eval()
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            x_1 = module(x_1)
        if not isinstance(x_1, torch.Tensor):
            raise _problem(
                f"layer {index} gives {type(x_1).__name__}; a layer must give one tensor"
            )
        if x_1.dim() == 0 or x_1.shape[0] != 1:
            raise _problem(
                f"layer {index} makes {list(x_1.shape)} of one sample; "
                "the first axis must stay the samples'"
            )
        parameters = list(module.parameters())
        found.append(
            {
                "index": index,
                "parameters": sum(parameter.numel() for parameter in parameters),
                "parameter_bytes": _num_bytes(parameters),
                "output_shape": list(x_1.shape[1:]),
                "output_bytes": _num_bytes([x_1]),
                "forward_flops": counter.get_total_flops(),
            }
        )
    _check_loss(workload, x_1, target_1)
    return found


def _first_sample(dataset: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    sample: Any = dataset[0]
    if not (
        isinstance(sample, tuple)
        and len(sample) == 2
        and all(isinstance(part, torch.Tensor) for part in sample)
    ):
        raise _problem(
            f"dataset()[0] gives {type(sample).__name__}; "
            "a sample must be a tuple of two tensors (input, target)"
        )
    inputs, target = sample
    return inputs.unsqueeze(0), target.unsqueeze(0)


def _check_loss(workload: Workload, output_1: torch.Tensor, target_1: torch.Tensor) -> None:
    loss: Any = workload.loss(output_1, target_1)
    if not (isinstance(loss, tuple) and len(loss) == 2):
        raise _problem("loss() must give a pair (sum, weight)")
    total, weight = loss
    if not (isinstance(total, torch.Tensor) and total.dim() == 0):
        raise _problem(
            "the first part of what loss() gives must be a tensor without axes: "
            "the sum over the micro-batch"
        )
    if float(weight) <= 0:
        raise _problem("the weight that loss() gives for the first sample is not above 0")


def _num_bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _problem(message: str, *, path: str = "workload") -> SpecError:
    return SpecError([Problem(path, message)])
