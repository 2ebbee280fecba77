"""What a workload is made of: built layer by layer, tried on two samples, and told to the control
plane, which has no torch. What is wrong with it is found here, before anything is trained.

B is the number of samples that are tried.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import nn
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
from worker.data.batches import refuse_sample
from worker.environment import environment
from worker.model import user_code
from worker.model.code_digest import code_sha256
from worker.model.user_code import REDUCIBLE, loss_parts, named, problem, refuse_weight, told
from worker.model.workload import build_layer
from worker.optimizer import own_optimizer, refuse_state

_SEED: Final = 0


def describe(workload: str, params: dict[str, Any], data: str) -> WorkloadInfo:
    """Build a workload and run two samples through it.

    Raises:
        SpecError: it cannot be built, lacks a part of the protocol, takes more memory than it may,
            or cannot be trained right by this version.
    """
    torch.set_num_threads(settings.read().num_threads)
    try:
        return _describe(workload, params, data)
    except (MemoryError, RuntimeError) as error:
        if not user_code.is_out_of_memory(error):
            raise
        said = " ".join(user_code.said_of(error).split()) or "no more is free"
        told = f"looking at one layer after the other takes more memory than this node has: {said}"
        raise SpecError([Problem("params", told)]) from error


def _describe(workload: str, params: dict[str, Any], data: str) -> WorkloadInfo:
    with _calling(workload):
        built = load_workload(workload, params=params, data=data)
    with _calling("dataset()"):
        dataset = built.dataset()
        num_samples = len(dataset)
    if num_samples == 0:
        raise problem("the dataset holds no samples", path="data.source")
    layers = _layers(built, *_batch(dataset, num_samples))
    runs_on_sha256, runs_on = environment()
    return WorkloadInfo(
        num_layers=len(layers),
        layers=layers,
        num_parameters=sum(layer["parameters"] for layer in layers),
        num_samples=num_samples,
        weight_unit="tokens" if getattr(built, "weight_unit", None) == "tokens" else "samples",
        code_sha256=code_sha256(workload),
        data_sha256=getattr(dataset, "sha256", None),
        tensor_units=built.tensor_units if isinstance(built, WithTensorParallel) else None,
        brings_optimizer=isinstance(built, WithOptimizer),
        environment_sha256=runs_on_sha256,
        environment=runs_on,
    )


def _calling(what: str) -> Any:
    """Nothing is tried again here: what cannot be read now is told, too."""
    return user_code.calling(what, may_pass=None)


def _batch(dataset: Dataset, num_samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first and the last sample as a batch; where there is only one, that."""
    chosen = sorted({0, num_samples // 2, num_samples - 1})
    samples: list[tuple[torch.Tensor, torch.Tensor]] = []
    for index in chosen:
        with _calling(f"dataset()[{index}]"):
            sample = dataset[index]
        refuse_sample(sample, index, like=samples[0] if samples else sample)
        samples.append(sample)
    with _calling("dataset()[0]"):
        again = dataset[0]
    if not all(_same(one, other) for one, other in zip(samples[0], again, strict=True)):
        raise problem(
            "dataset()[0] gives another sample when it is asked for again: the same index must "
            "always give the same sample, on every rank and after every restart; draw what is "
            "random from a generator seeded with the index"
        )
    ends = [samples[0], samples[-1]][: len(samples)]
    return torch.stack([each[0] for each in ends]), torch.stack([each[1] for each in ends])


def _layers(workload: Workload, x_B: torch.Tensor, target_B: torch.Tensor) -> list[dict[str, Any]]:
    """Build, run and forget one layer after the other, so that a model larger than memory can be
    described.
    """
    with _calling("layers()"):
        builders = list(workload.layers())
    if not builders:
        raise problem("layers() gives no builders")
    found = []
    seen: dict[int, tuple[weakref.ref[nn.Parameter], int, str]] = {}
    trained: list[tuple[str, nn.Parameter]] = []
    for index, builder in enumerate(builders):
        module = _built(builder, index)
        _refuse_shared(module, index, seen)
        given = told(x_B.shape, x_B.dtype)
        with _calling(f"layer {index}, given {given},"), torch.no_grad():
            with FlopCounterMode(display=False) as counter:
                output_B: Any = module(x_B)
            output_1: Any = module(x_B[:1])
        _refuse_output(output_B, index, num_samples=len(target_B))
        _refuse_output(output_1, index, num_samples=1)
        if (output_1.shape[1:], output_1.dtype) != (output_B.shape[1:], output_B.dtype):
            raise problem(
                f"layer {index} gives {told(output_1.shape, output_1.dtype)} of one sample, but "
                f"{told(output_B.shape, output_B.dtype)} of {len(target_B)}: what a layer gives "
                "must keep its shape and dtype"
            )
        if index < len(builders) - 1 and output_B.dtype not in REDUCIBLE:
            raise problem(
                f"layer {index} gives {output_B.dtype}, which the next layer cannot be "
                "differentiated by; it must give floating-point numbers"
            )
        x_B = output_B
        parameters = list(module.parameters())
        found.append(
            {
                "index": index,
                "parameters": sum(parameter.numel() for parameter in parameters),
                "split_parameters": _split_parameters(workload, module, index),
                "parameter_bytes": _num_bytes(parameters),
                "output_shape": list(x_B.shape[1:]),
                "output_bytes": _num_bytes([x_B]) // len(x_B),
                "forward_flops": counter.get_total_flops() // len(x_B),
            }
        )
        trained = [
            (f"layers.{index}.{name}", parameter)
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        ] or trained
    _check_loss(workload, x_B, target_B)
    if isinstance(workload, WithOptimizer) and trained:
        _check_optimizer(workload, trained)
    return found


def _split_parameters(workload: Workload, module: nn.Module, index: int) -> int:
    """Return how many of a layer's parameters the workload divides among the ranks of a place."""
    if not isinstance(workload, WithTensorParallel):
        return 0
    with _calling(f"tensor_parallel({index})"):
        names = list(workload.tensor_parallel(index))
    parts = [part for name, part in module.named_modules() if name in names]
    return sum(parameter.numel() for part in parts for parameter in part.parameters())


def _built(builder: Callable[[], nn.Module], index: int) -> nn.Module:
    """Build a layer twice, and refuse one whose initial weights are not the same again."""
    with _calling(f"the builder of layer {index}"):
        module = build_layer(builder, index, seed=_SEED)
        again = dict(build_layer(builder, index, seed=_SEED).named_parameters())
    for name, parameter in module.named_parameters():
        if not bool(torch.isfinite(parameter.detach().float()).all()):
            raise problem(
                f"layer {index}: parameter {name!r} begins with values that are not finite"
            )
        if name not in again or not _same(parameter.detach(), again[name].detach()):
            raise problem(
                f"layer {index}: parameter {name!r} begins with other values when it is built "
                "again with the same seed, so replicas would begin differently: draw initial "
                "weights from torch's default generator, which is seeded before each builder"
            )
    return module.eval()


def _refuse_shared(
    module: nn.Module, index: int, seen: dict[int, tuple[weakref.ref[nn.Parameter], int, str]]
) -> None:
    """Refuse a parameter of an earlier layer, and remember this one's. A layer that nobody else
    holds is gone by now, and its parameters with it.
    """
    for name, parameter in module.named_parameters():
        earlier, layer, first_name = seen.get(id(parameter), (None, index, name))
        if earlier is not None and earlier() is parameter and layer != index:
            raise user_code.shared(layer, first_name, index, name)
        seen[id(parameter)] = weakref.ref(parameter), index, name


def _refuse_output(output: object, index: int, *, num_samples: int) -> None:
    if not isinstance(output, torch.Tensor):
        raise problem(f"layer {index} gives {named(output)}; a layer must give one tensor")
    if output.dim() == 0 or output.shape[0] != num_samples:
        raise problem(
            f"layer {index} makes {list(output.shape)} of {num_samples} samples; "
            "the first axis must stay the samples'"
        )


def _check_loss(workload: Workload, output_B: torch.Tensor, target_B: torch.Tensor) -> None:
    is_trained_on = output_B.is_floating_point()
    output_B = output_B.detach().requires_grad_(is_trained_on)
    given = f"{told(output_B.shape, output_B.dtype)} and {told(target_B.shape, target_B.dtype)}"
    with _calling(f"loss(), given {given},"):
        total, weight = loss_parts(workload.loss(output_B, target_B))
    if not total.requires_grad:
        raise problem(
            "loss() gives a sum without a gradient: it must be computed from the output by what "
            "torch can differentiate"
        )
    number = float(weight.detach() if isinstance(weight, torch.Tensor) else weight)
    refuse_weight(number, of="the first samples")
    if number == 0:
        raise problem("the weight that loss() gives for the first samples is not above 0")
    if math.isnan(float(total.detach())):
        raise problem("loss() gives nan for the first samples and the initial weights")


def _check_optimizer(workload: WithOptimizer, trained: list[tuple[str, nn.Parameter]]) -> None:
    """Try the workload's optimizer on the parameters of one layer."""
    optimizer = own_optimizer(workload, trained)
    for _, parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    with _calling("the optimizer's step()"):
        optimizer.step()
    refuse_state(optimizer, trained)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)


def _num_bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
