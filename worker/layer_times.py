"""What the layers of a workload take on a device, and what they keep from forward to backward:
measured layer by layer, each built and forgotten before the next.

B is the number of samples of a pass.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from trainmaster.calibration import LayerFigures, WorkloadFigures, workload_key
from trainmaster.plugins import Workload, load_workload
from worker import settings
from worker.devices import ComputeDevice
from worker.emulation import Pace
from worker.launch import Emulation, SlotDevice
from worker.model.code_digest import code_sha256
from worker.model.workload import build_layer

SAMPLES: Final = (1, 4)
"""Passes of these sizes are timed: a line goes through them."""
REPEATS: Final = 5
_SEED: Final = 0


def measured(
    workload: str, params: dict[str, Any], data: str, device: SlotDevice, emulation: Emulation
) -> dict[str, WorkloadFigures]:
    """Return the figures of a workload on a device, by its key.

    Raises:
        SpecError: it cannot be loaded.
        UserError: torch does not have the device.
    """
    torch.set_num_threads(settings.read().num_threads)
    computing = ComputeDevice.of(device)
    computing.enter()
    built = load_workload(workload, params=params, data=data)
    is_fixed = emulation.layer_time_s is not None
    return {
        workload_key(workload, params, code_sha256(workload)): WorkloadFigures(
            workload=workload,
            samples=[] if is_fixed else list(SAMPLES),
            layers=_layers(built, computing, emulation, is_timed=not is_fixed),
        )
    }


def _layers(
    workload: Workload, computing: ComputeDevice, emulation: Emulation, *, is_timed: bool
) -> list[LayerFigures]:
    x, _ = workload.dataset()[0]
    inputs = {b: torch.stack([x] * b).to(computing.torch_device) for b in SAMPLES}
    found = []
    for index, builder in enumerate(workload.layers()):
        module = build_layer(builder, index, seed=_SEED).to(computing.torch_device)
        seconds = dict.fromkeys(SAMPLES, (0.0, 0.0))
        if is_timed:
            seconds = {b: _timed(module, each, computing, emulation) for b, each in inputs.items()}
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            module(inputs[1])
        (forward_s, forward_each), (backward_s, backward_each) = (
            _line(seconds[SAMPLES[0]][way], seconds[SAMPLES[1]][way]) for way in (0, 1)
        )
        found.append(
            LayerFigures(
                forward_s=forward_s,
                forward_per_sample_s=forward_each,
                backward_s=backward_s,
                backward_per_sample_s=backward_each,
                flops=counter.get_total_flops(),
                kept_bytes=_kept_bytes(module, inputs[1]),
            )
        )
        with torch.no_grad():
            inputs = {b: module(each) for b, each in inputs.items()}
    return found


def _timed(
    module: nn.Module, x_B: torch.Tensor, computing: ComputeDevice, emulation: Emulation
) -> tuple[float, float]:
    """Return the seconds of a forward and of a backward: the medians, after one that warms up."""
    forwards, backwards = [], []
    for _ in range(REPEATS + 1):
        given_B = x_B.detach().requires_grad_(x_B.is_floating_point())
        output_B, forward_s = _done(partial(module, given_B), computing, emulation)
        backward_s = 0.0
        if output_B.requires_grad:
            backward = partial(output_B.backward, torch.ones_like(output_B))
            _, backward_s = _done(backward, computing, emulation)
        forwards.append(forward_s)
        backwards.append(backward_s)
        module.zero_grad(set_to_none=True)
    return statistics.median(forwards[1:]), statistics.median(backwards[1:])


def _done(
    work: Callable[[], Any], computing: ComputeDevice, emulation: Emulation
) -> tuple[Any, float]:
    """Return what work gives, and the seconds that it takes on the device that is played."""
    pace = Pace(emulation)
    _finish(computing)
    started = time.perf_counter()
    given = work()
    _finish(computing)
    began, ended = pace.rest("forward", 1, started)
    return given, ended - began


def _finish(computing: ComputeDevice) -> None:
    if computing.is_cuda:
        torch.cuda.synchronize()


def _line(few_s: float, many_s: float) -> tuple[float, float]:
    """Return (seconds, seconds per sample) of the line through both sizes, neither below 0."""
    few, many = SAMPLES
    each = max(0.0, (many_s - few_s) / (many - few))
    return max(0.0, few_s - few * each), each


def _kept_bytes(module: nn.Module, x_1: torch.Tensor) -> int:
    """Return the bytes that a forward of one sample keeps for its backward, parameters left out."""
    own = {each.untyped_storage().data_ptr() for each in module.parameters()}
    sizes: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = max(
                sizes.get(storage.data_ptr(), 0), math.prod(tensor.shape) * tensor.element_size()
            )
        return tensor

    given_1 = x_1.detach().requires_grad_(x_1.is_floating_point())
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        module(given_1)
    return sum(sizes.values())
