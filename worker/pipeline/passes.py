"""One replica's forward and backward over its share of a batch, in the order of the plan's
schedule.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.distributed.pipelining.schedules import get_schedule_class

from trainmaster.layout import RankRole
from trainmaster.plan import Plan
from trainmaster.plugins import Workload
from trainmaster.schedules import Schedule, named, order_of
from worker import guard
from worker.devices import ComputeDevice
from worker.groups import Groups
from worker.late import LateLoss
from worker.model.draws import Draws
from worker.model.precision import Precision, computing_in
from worker.model.user_code import loss_parts, refuse_weight
from worker.model.workload import StageLayers
from worker.pipeline.order_runtime import run_order
from worker.pipeline.stage import Collector, MeasuredStage, make_stages
from worker.reporting.meter import Meter


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass over a share gave.

    Attributes:
        losses: (sum, weight) of each micro-batch in order, on the replica's last stage; nothing
            elsewhere. Where statuses are read late, the device has not told them yet.
    """

    losses: tuple[guard.Loss, ...] | tuple[LateLoss, ...]
    span_s: float


class Pipeline:
    """Runs this rank's part of its replica.

    After the backward of each micro-batch, the parameters' gradients have grown by those of its
    plain loss sum, and the collector is told.
    """

    def __init__(
        self,
        layers: StageLayers,
        *,
        workload: Workload,
        plan: Plan,
        role: RankRole,
        groups: Groups,
        meter: Meter,
        collector: Collector,
        precision: Precision,
        device: ComputeDevice,
        draws: Draws,
        samples: int,
        input_M: torch.Tensor | None,
        within: AbstractContextManager[object],
        reads_late: bool = False,
    ) -> None:
        """Args:
        samples: of the replica's share. Where its last micro-batch holds fewer than the others, the
            rest of it is padding, which counts for nothing.
        within: what a pass is run in.
        reads_late: whether losses stay on the device.
        """
        self._workload = workload
        self._within = within
        self._reads_late = reads_late
        self._precision = precision
        self._device = device.torch_device
        self._draws = draws
        self._num_layers = plan.num_layers
        self._loss_scale = 1.0
        self._meter = meter
        self._losses: dict[int, tuple[torch.Tensor, torch.Tensor | float]] = {}
        schedule = named(plan.schedule)
        self._stages: list[MeasuredStage] = make_stages(
            layers,
            role,
            groups.pipeline,
            partial(schedule.rank_of, role.num_stages, plan.virtual),
            meter,
            collector,
            precision,
            device,
            plan.recompute,
            draws,
            input_M,
            groups.relay,
            crosses=groups.pipeline_crosses,
        )
        self._micro_batches = micro_batches = plan.pipelines[role.replica].micro_batches
        self._last = micro_batches - 1
        self._samples_of_last = samples - self._last * plan.micro_batch
        # The divisor is the weight of all replicas, known only after the pass.
        self._schedule = (
            self._of_torch(schedule, micro_batches)
            if schedule.torch_class
            else run_order(
                order_of(schedule.name, role.num_stages, plan.virtual, micro_batches),
                self._stages,
                micro_batches,
                self._loss_sum,
            )
        )

    def _of_torch(self, schedule: Schedule, micro_batches: int) -> Any:
        is_single = schedule.virtual == 1
        return get_schedule_class(schedule.torch_class)(
            self._stages[0] if is_single else self._stages,
            n_microbatches=micro_batches,
            loss_fn=self._loss_sum,
            scale_grads=False,
        )

    def run(
        self,
        inputs: torch.Tensor | None,
        targets: torch.Tensor | None,
        *,
        is_final: bool = True,
        loss_scale: float = 1.0,
    ) -> Pass:
        """Run the replica's share forward and backward.

        Args:
            inputs: the share's inputs on the first stage, None elsewhere.
            targets: the share's targets on the last stage, None elsewhere.
            is_final: whether no other pass follows in this step.
            loss_scale: what losses are multiplied by before their backward.
        """
        started = time.perf_counter()
        self._meter.begin_pass(self._micro_batches)
        self._losses.clear()
        self._loss_scale = loss_scale
        for stage in self._stages:
            stage.is_final = is_final
        args = () if inputs is None else (inputs,)
        with self._within:
            self._schedule.step(*args, target=targets, return_outputs=False)
        ended = time.perf_counter()
        self._meter.note("pass", started, ended)
        told = [each for _, each in sorted(self._losses.items())]
        if self._reads_late:
            return Pass(tuple(told), ended - started)
        losses = tuple((float(total) / loss_scale, float(weight)) for total, weight in told)
        for micro_batch, (_, weight) in enumerate(losses):
            refuse_weight(weight, of=f"micro-batch {micro_batch}")
        return Pass(losses, ended - started)

    def _loss_sum(self, output_M: torch.Tensor, target_M: torch.Tensor) -> torch.Tensor:
        micro_batch = self._stages[-1].micro_batch
        if micro_batch == self._last:
            output_M, target_M = (each[: self._samples_of_last] for each in (output_M, target_M))
        self._draws.seed(self._num_layers)
        last = self._stages[-1].stage_index
        with (
            self._meter.computing("loss", last, micro_batch, 0),
            computing_in(self._precision, self._device),
        ):
            loss, weight = loss_parts(self._workload.loss(output_M, target_M))
        if self._loss_scale != 1.0:
            loss = loss.float() * self._loss_scale
        self._losses[micro_batch] = loss.detach(), weight
        return loss
