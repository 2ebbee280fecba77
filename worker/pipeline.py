"""One replica's forward and backward over its share of a batch, in the order of the plan's
schedule.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.pipelining.schedules import get_schedule_class

from trainmaster.layout import RankRole
from trainmaster.plan import Plan
from trainmaster.plugins import Workload
from trainmaster.schedules import SCHEDULES
from worker.groups import Groups
from worker.stage import MeasuredStage, make_stage
from worker.timeline import Meter


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass over a share gave. Sums and weights are the replica's on its last stage and 0
    elsewhere.
    """

    loss_sum: float
    weight: float
    span_s: float


class Pipeline:
    """Runs this rank's part of its replica.

    After the backward of each micro-batch, the parameters' gradients have grown by those of its
    plain loss sum, and `after_backward` is called.
    """

    def __init__(
        self,
        layers: nn.Module,
        *,
        workload: Workload,
        plan: Plan,
        role: RankRole,
        groups: Groups,
        meter: Meter,
        after_backward: Callable[[], None],
        input_M: torch.Tensor | None,
    ) -> None:
        self._workload = workload
        self._meter = meter
        self._role = role
        self._weights: list[torch.Tensor | float] = []
        self._stage: MeasuredStage = make_stage(
            layers, role, groups.pipeline, meter, after_backward, input_M
        )
        schedule_class = get_schedule_class(SCHEDULES[plan.schedule].torch_class)
        # The divisor is the weight of all replicas, known only after the pass.
        self._schedule = schedule_class(
            self._stage,
            n_microbatches=plan.pipelines[role.replica].micro_batches,
            loss_fn=self._loss_sum,
            scale_grads=False,
        )

    def run(self, inputs: torch.Tensor | None, targets: torch.Tensor | None) -> Pass:
        """Run the replica's share forward and backward.

        Args:
            inputs: the share's inputs on the first stage, None elsewhere.
            targets: the share's targets on the last stage, None elsewhere.
        """
        started = time.perf_counter()
        self._weights.clear()
        losses: list[torch.Tensor] = []
        args = () if inputs is None else (inputs,)
        self._schedule.step(*args, target=targets, losses=losses, return_outputs=False)
        loss_sum = sum(float(loss.detach()) for loss in losses)
        weight = sum(float(weight) for weight in self._weights)
        return Pass(loss_sum, weight, time.perf_counter() - started)

    def _loss_sum(self, output_M: torch.Tensor, target_M: torch.Tensor) -> torch.Tensor:
        with self._meter.computing("loss"):
            loss, weight = self._workload.loss(output_M, target_M)
        self._weights.append(weight)
        return loss
