"""An order of work as data, carried out by torch's own runtime: the way of schedules that third
parties bring.

Beside `worker.pipeline.timeline` the one place that uses what torch calls private; `run_order`
fails at once where torch has renamed it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime
from torch.distributed.pipelining.stage import _PipelineStageBase

from trainmaster.schedules import Order


def run_order(
    order: Order,
    stages: Sequence[_PipelineStageBase],
    micro_batches: int,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Any:
    """Return what steps through `order` with this rank's stages, as torch's schedules do."""
    runtime = _PipelineScheduleRuntime(
        list(stages), n_microbatches=micro_batches, loss_fn=loss, scale_grads=False
    )
    runtime.pipeline_order = {
        rank: [_Action.from_str(str(action)) for action in sequence]
        for rank, sequence in enumerate(order)
    }
    runtime._prepare_schedule_with_comms(runtime.pipeline_order)
    return runtime
