"""The stages of a pipeline that this rank holds: torch's PipelineStage, measured, with static
metadata from one trial run down the pipeline.

M is the size of a micro-batch; activations keep it as their first axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage

from trainmaster.cells import Recompute
from trainmaster.layout import RankRole, Stage
from worker.devices import HOST, ComputeDevice, Relay
from worker.emulation import Departure, Work
from worker.model.draws import Draws
from worker.model.precision import Precision, computing_in
from worker.model.recompute import computed_once, running
from worker.model.user_code import REDUCIBLE, calling, problem, told
from worker.model.workload import StageLayers
from worker.pipeline.staging import Staging
from worker.pipeline.timeline import Label, labelled
from worker.reporting.meter import Computing, Meter

_MAX_AXES: Final = 8

RankOf = Callable[[int], int]
"""Stage of the pipeline -> rank within the pipeline's group that holds it."""


class Collector(Protocol):
    """Takes what backwards leave in the parameters' gradients of a stage."""

    def taking(
        self, stage: int, micro_batch: int, *, is_last: bool
    ) -> AbstractContextManager[Sequence[Departure]]:
        """Return what the backward that makes one micro-batch's gradients whole is run in. It gives
        what is to leave as an emulated device gets there, known once the backward has ended.

        Args:
            is_last: whether the stage's gradients of this step are whole after it.
        """
        ...


class MeasuredStage(PipelineStage):
    """A stage that counts the seconds of its forwards and backwards, and hands over what they leave
    in the parameters' gradients.

    Attributes:
        is_final: whether the pass that runs is the last one of its step.
        micro_batch: the one that went forward last.
    """

    def __init__(
        self,
        *args: Any,
        stage: Stage,
        meter: Meter,
        collector: Collector,
        precision: Precision,
        staging: Staging,
        draws: Draws,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._precision = precision
        self._num_layers = stage.end_layer - stage.first_layer
        self._meter = meter
        self._collector = collector
        self._staging = staging
        self._draws = draws
        self.is_final = True
        self.micro_batch = 0

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Run one micro-batch forward."""
        self.micro_batch = fwd_chunk_id
        self._draws.choose(fwd_chunk_id)
        self._staging.land(("activation", fwd_chunk_id))
        with (
            self._computing("forward", fwd_chunk_id),
            computing_in(self._precision, self.device),
        ):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(
        self,
        bwd_chunk_id: int,
        loss: Any = None,
        full_backward: bool = True,
        last_backward: bool = False,
    ) -> None:
        """Run one micro-batch backward; without the weights' gradients if not `full_backward`."""
        self._staging.land(("gradient", bwd_chunk_id))
        if not full_backward:
            with self._computing("input", bwd_chunk_id):
                super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)
            return
        is_last = last_backward and self.is_final
        with (
            self._computing("backward", bwd_chunk_id) as computing,
            self._taking(bwd_chunk_id, is_last) as computing.leaving,
        ):
            super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """Compute the weights' gradients of one micro-batch."""
        is_last = last_backward and self.is_final
        with (
            self._computing("weights", bwd_chunk_id) as computing,
            self._taking(bwd_chunk_id, is_last) as computing.leaving,
            computed_once(),
        ):
            super().backward_weight_one_chunk(bwd_chunk_id, last_backward)

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Return how to receive the activation of a micro-batch."""
        ops = super().get_fwd_recv_ops(fwd_chunk_id)
        ops = self._staging.receiving(("activation", fwd_chunk_id), ops)
        return self._labelled(ops, "receive_activation", fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Return how to receive the gradient of a micro-batch."""
        ops = super().get_bwd_recv_ops(bwd_chunk_id)
        ops = self._staging.receiving(("gradient", bwd_chunk_id), ops)
        return self._labelled(ops, "receive_gradient", bwd_chunk_id)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Return how to send the activation of a micro-batch."""
        ops = self._staging.sending(super().get_fwd_send_ops(fwd_chunk_id))
        return self._labelled(ops, "send_activation", fwd_chunk_id)

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Return how to send the gradient of a micro-batch."""
        ops = self._staging.sending(super().get_bwd_send_ops(bwd_chunk_id))
        return self._labelled(ops, "send_gradient", bwd_chunk_id)

    def _labelled(self, ops: list[dist.P2POp], kind: str, micro_batch: int) -> list[dist.P2POp]:
        if self._meter.actions is None or not ops:
            return ops
        number = self._meter.first_number + micro_batch
        return labelled(ops, Label(kind, self.stage_index, number))

    def _computing(self, work: Work, micro_batch: int) -> Computing:
        return self._meter.computing(work, self.stage_index, micro_batch, self._num_layers)

    def _post_metadata_inference_cleanup(self) -> None:
        """Keep the gradients' buffers, which torch would drop: with static metadata there has been
        no inference to clean up after.
        """

    def _taking(
        self, micro_batch: int, is_last: bool
    ) -> AbstractContextManager[Sequence[Departure]]:
        return self._collector.taking(self.stage_index, micro_batch, is_last=is_last)


def make_stages(
    layers: StageLayers,
    role: RankRole,
    group: dist.ProcessGroup,
    rank_of: RankOf,
    meter: Meter,
    collector: Collector,
    precision: Precision,
    device: ComputeDevice,
    recompute: Recompute,
    draws: Draws,
    input_M: torch.Tensor | None,
    relay: Relay,
    *,
    crosses: bool,
) -> list[MeasuredStage]:
    """Return this rank's stages; collective over the pipeline.

    Args:
        layers: all that this rank holds.
        input_M: a micro-batch of inputs on the first stage; None elsewhere.
        relay: for messages between kinds.
        crosses: whether the pipeline's ranks are on devices of different kinds.

    Raises:
        SpecError: a layer gives something else than one tensor that the next stage can be
            differentiated by.
    """
    made = []
    output_M: torch.Tensor | None = None
    for stage in role.stages:
        part = layers.part(stage.first_layer, stage.end_layer, run=running(recompute), draws=draws)
        if stage.index > 0:
            own = rank_of(stage.index - 1) == role.stage
            input_M = output_M if own else device.put(_receive(rank_of(stage.index - 1), group))
        assert input_M is not None, "the first stage is given its input"
        output_M = _trial(part, stage, precision, input_M)
        is_last = stage.index == role.num_pipeline_stages - 1
        if not is_last:
            _refuse_unfit(output_M, stage)
            if rank_of(stage.index + 1) != role.stage:
                _send(output_M, rank_of(stage.index + 1), group)
        made.append(
            MeasuredStage(
                part,
                stage.index,
                role.num_pipeline_stages,
                device.torch_device,
                input_args=_example(input_M),
                output_args=_example(output_M),
                group=group,
                stage=stage,
                meter=meter,
                collector=collector,
                precision=precision,
                staging=Staging(relay, crosses=crosses),
                draws=draws,
            )
        )
    return made


def _trial(
    part: nn.Module, stage: Stage, precision: Precision, input_M: torch.Tensor
) -> torch.Tensor:
    """Run one micro-batch through a stage without gradients, so that each learns its shapes by what
    really arrives.
    """
    was_training = part.training
    part.eval()
    last = stage.end_layer - 1
    given = told(input_M.shape, input_M.dtype)
    with (
        calling(f"a trial run of layers {stage.first_layer} to {last}, given {given},"),
        torch.no_grad(),
        computing_in(precision, input_M.device),
    ):
        output_M: torch.Tensor = part(input_M)
    part.train(was_training)
    return output_M


def _refuse_unfit(output_M: torch.Tensor, stage: Stage) -> None:
    if output_M.dtype not in REDUCIBLE or output_M.dim() > _MAX_AXES:
        gives = f"{output_M.dtype} of {output_M.dim()} axes"
        raise problem(
            f"layer {stage.end_layer - 1} gives {gives}, which cannot be handed to the next stage"
        )


def _send(tensor: torch.Tensor, peer: int, group: dist.ProcessGroup) -> None:
    head: Sequence[int] = [tensor.dim(), REDUCIBLE.index(tensor.dtype), *tensor.shape]
    head = [*head, *[0] * (2 + _MAX_AXES - len(head))]
    dist.send(torch.tensor(head), group_dst=peer, group=group)
    dist.send(tensor.to(HOST).contiguous(), group_dst=peer, group=group)


def _receive(peer: int, group: dist.ProcessGroup) -> torch.Tensor:
    head = torch.zeros(2 + _MAX_AXES, dtype=torch.int64)
    dist.recv(head, group_src=peer, group=group)
    num_axes, dtype, *shape = head.tolist()
    tensor = torch.empty(shape[:num_axes], dtype=REDUCIBLE[dtype])
    dist.recv(tensor, group_src=peer, group=group)
    return tensor


def _example(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor).requires_grad_(tensor.is_floating_point())
