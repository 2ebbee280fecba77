"""One stage of a pipeline: torch's PipelineStage, measured, with static metadata from one trial run
down the pipeline.

M is the size of a micro-batch; activations keep it as their first axis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage

from trainmaster.errors import Problem, SpecError
from trainmaster.layout import RankRole
from worker.timeline import Meter

CPU: Final = torch.device("cpu")
_DTYPES: Final = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_MAX_AXES: Final = 8


class MeasuredStage(PipelineStage):
    """A stage that counts the seconds of its forwards and backwards, and hands over what each
    backward leaves in the parameters' gradients.
    """

    def __init__(
        self, *args: Any, meter: Meter, after_backward: Callable[[], None], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._meter = meter
        self._after_backward = after_backward

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """Run one micro-batch forward."""
        with self._meter.computing("forward"):
            return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """Run one micro-batch backward."""
        with self._meter.computing("backward"):
            super().backward_one_chunk(*args, **kwargs)
            self._after_backward()


def make_stage(
    layers: nn.Module,
    role: RankRole,
    group: dist.ProcessGroup,
    meter: Meter,
    after_backward: Callable[[], None],
    input_M: torch.Tensor | None,
) -> MeasuredStage:
    """Return this rank's stage; collective over the pipeline.

    Args:
        after_backward: called after the backward of each micro-batch.
        input_M: a micro-batch of inputs on the first stage; None elsewhere.

    Raises:
        SpecError: a layer gives something else than one tensor that the next stage can be
            differentiated by.
    """
    input_M, output_M = _trial_run(layers, role, group, input_M)
    return MeasuredStage(
        layers,
        role.stage,
        role.num_stages,
        CPU,
        input_args=_example(input_M),
        output_args=_example(output_M),
        group=group,
        meter=meter,
        after_backward=after_backward,
    )


def _trial_run(
    layers: nn.Module, role: RankRole, group: dist.ProcessGroup, input_M: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run one micro-batch through all stages without gradients, so that each learns its shapes by
    what really arrives.
    """
    if input_M is None:
        input_M = _receive(dist.get_global_rank(group, role.stage - 1), group)
    was_training = layers.training
    layers.eval()
    with torch.no_grad():
        output_M = layers(input_M)
    layers.train(was_training)
    if not isinstance(output_M, torch.Tensor):
        raise _problem(role, f"{type(output_M).__name__}; a layer must give one tensor")
    if not role.is_last_stage:
        if output_M.dtype not in _DTYPES or output_M.dim() > _MAX_AXES:
            gives = f"{output_M.dtype} of {output_M.dim()} axes"
            raise _problem(role, f"{gives}, which cannot be handed to the next stage")
        _send(output_M, dist.get_global_rank(group, role.stage + 1), group)
    return input_M, output_M


def _send(tensor: torch.Tensor, peer: int, group: dist.ProcessGroup) -> None:
    head = [tensor.dim(), _DTYPES.index(tensor.dtype), *tensor.shape]
    dist.send(torch.tensor(head + [0] * (2 + _MAX_AXES - len(head))), dst=peer, group=group)
    dist.send(tensor.contiguous(), dst=peer, group=group)


def _receive(peer: int, group: dist.ProcessGroup) -> torch.Tensor:
    head = torch.zeros(2 + _MAX_AXES, dtype=torch.int64)
    dist.recv(head, src=peer, group=group)
    num_axes, dtype, *shape = head.tolist()
    tensor = torch.empty(shape[:num_axes], dtype=_DTYPES[dtype])
    dist.recv(tensor, src=peer, group=group)
    return tensor


def _example(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor).requires_grad_(tensor.is_floating_point())


def _problem(role: RankRole, gives: str) -> SpecError:
    return SpecError([Problem("workload", f"layer {role.end_layer - 1} gives {gives}")])
