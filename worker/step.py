"""One training step, from its batch to its update: the same decision on every rank."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from trainmaster.batches import Range, batch_of_step, passes_of
from trainmaster.layout import RankRole, first_micro_batch
from trainmaster.plan import Plan
from trainmaster.pulse import Activity
from trainmaster.spec import TrainSpec
from worker import guard
from worker.data.batches import BatchReader
from worker.devices import ComputeDevice
from worker.faults import Faults
from worker.gradients.ordered import Covers, covers_of
from worker.gradients.reduce import Gradients, Synchronisation
from worker.groups import Groups
from worker.late import CLIP_EPSILON, Gate, LateContribution, LateGuard, LateStatus
from worker.model.draws import Draws
from worker.model.precision import TRIES, LossScale
from worker.model.workload import StageLayers
from worker.optimizer import LrWindows, Optimizer, lr_factor
from worker.orders import OrderDesk
from worker.pipeline.passes import Pipeline
from worker.reporting.meter import Meter
from worker.reporting.spoolfile import SpoolFile
from worker.reporting.telemetry import StepRecord


@dataclass(frozen=True, slots=True)
class Course:
    """What fixes every step of an attempt: the spec's numbers, the batches nobody consumes, the
    learning rate's windows.

    Attributes:
        sync_every: passes over a global batch that make one step, hence one batch.
    """

    train: TrainSpec
    skip: tuple[Range, ...]
    lr_windows: LrWindows
    sync_every: int = 1

    def batch(self, step: int) -> int:
        """Return the batch that `step` consumes."""
        return batch_of_step(step, self.skip)

    def passes(self, batch: int) -> range:
        """Return the runs of `global_batch` samples, numbered from 1, that make up `batch`."""
        return passes_of(batch, self.sync_every, self.train.batch_ramp_steps)

    def lr_factor(self, step: int) -> float:
        """Return what the learning rate is multiplied by at `step`."""
        return lr_factor(
            step,
            self.train.optimizer,
            steps=self.train.steps,
            samples_per_step=self.train.global_batch * len(self.passes(self.batch(step))),
            windows=self.lr_windows,
        )


@dataclass(slots=True)
class Machinery:
    """The parts that a step moves, assembled for one rank."""

    plan: Plan
    role: RankRole
    groups: Groups
    layers: StageLayers
    reader: BatchReader
    draws: Draws
    pipeline: Pipeline
    gradients: Gradients
    optimizer: Optimizer
    meter: Meter
    faults: Faults
    spool: SpoolFile
    data_sha256: str | None
    desk: OrderDesk | None
    """Rank 0's; the others hear its orders in the status."""
    device: ComputeDevice
    reads_late: bool
    """Whether the status of a step stays on the device until the next one has been launched."""


@dataclass(frozen=True, slots=True)
class _Passes:
    """What all passes of a step gave together, and the seconds spent on data."""

    losses: dict[int, Any]
    """(sum, weight) by micro-batch, as `Pass` has them."""
    span_s: float
    data_s: float


@dataclass(frozen=True, slots=True)
class _Seen:
    """What computing a step's gradients gave."""

    status: guard.Status | LateStatus
    sync: Synchronisation
    data_s: float
    status_s: float
    gate: Gate | None = None
    """Where the status stays on the device."""


@dataclass(frozen=True, slots=True)
class _Unread:
    """A status that is still on the device, and of which step it is."""

    status: LateStatus
    step: int
    batch: int


class Stepper:
    """Runs steps one after the other."""

    def __init__(
        self, parts: Machinery, course: Course, *, applied_updates: int, loss_scale: LossScale
    ) -> None:
        self._parts = parts
        self._course = course
        self._is_ordered = course.train.determinism == "layout"
        self._vector = guard.StatusVector(parts.plan, is_ordered=self._is_ordered)
        self._covers: dict[int, Covers] = {}
        """By the number of passes; none where sums are not ordered."""
        self.applied_updates = applied_updates
        self.loss_scale = loss_scale
        self._boundary = time.perf_counter()
        self._orders: list[guard.Told] = []
        self._unread: _Unread | None = None
        self._late = (
            LateGuard(
                self._vector,
                parts.role,
                parts.groups.world,
                parts.device.torch_device,
                clip=course.train.optimizer.grad_clip,
            )
            if parts.reads_late
            else None
        )

    def run(
        self,
        step: int,
        *,
        checkpoint_stall_s: float,
        checkpoint_failures: int = 0,
        records: bool = False,
    ) -> StepRecord:
        """Run one step on all ranks.

        Afterwards all replicas hold the same weights: updated, or as they were when a gradient or a
        loss was not finite on any rank.

        Args:
            checkpoint_stall_s: what this step has already waited for a checkpoint.
            checkpoint_failures: how many checkpoints in a row have failed before it.
            records: whether its timeline is recorded.
        """
        parts, batch = self._parts, self._course.batch(step)
        parts.meter.begin(step, self._boundary, records=records)
        poison = parts.faults.before_step(step, batch)
        seen = self._compute(step, batch, poison)
        status = seen.status

        started, share_s = time.perf_counter(), 0.0
        lr = parts.optimizer.set_lr(self._course.lr_factor(step))
        if isinstance(status, LateStatus):
            assert seen.gate is not None, "it came with the status"
            share_s = self._update(seen.gate.factor, seen.gate.closed)
            self.settle()
            self._unread = _Unread(status, step, batch)
        else:
            if status.because is None:
                share_s = self._update(self._clip_factor(status.grad_norm) / status.weight)
            self._conclude(status, step, batch)
        ended = time.perf_counter()
        parts.meter.note("optimizer", started, ended - share_s)
        parts.meter.note("share", ended - share_s, ended)
        record = StepRecord(
            step=step,
            status=status,
            lr=lr,
            step_time_s=ended - self._boundary,
            compute_s=parts.meter.compute_s,
            p2p_wait_s=parts.meter.p2p_wait_s,
            optimizer_s=ended - started,
            share_s=share_s,
            status_s=seen.status_s,
            data_s=seen.data_s,
            checkpoint_stall_s=checkpoint_stall_s,
            checkpoint_failures=checkpoint_failures,
            sync=seen.sync,
            replica=parts.role.replica,
            num_replicas=parts.plan.replicas,
        )
        self._boundary = ended
        return record

    def _update(self, factor: float | torch.Tensor, closed: torch.Tensor | None = None) -> float:
        """Apply the sums times `factor`, unless the gate is closed; return the seconds that sharing
        took.
        """
        parts = self._parts
        parts.gradients.publish(factor)
        parts.optimizer.step(closed)
        sharing = time.perf_counter()
        with parts.spool.pulse.doing(Activity.WAIT):
            parts.gradients.share()
        return time.perf_counter() - sharing

    def settle(self) -> None:
        """Read the status that is still on the device, if one is."""
        if self._unread is not None:
            unread, self._unread = self._unread, None
            self._conclude(unread.status.read(), unread.step, unread.batch)

    def take_orders(self) -> list[guard.Told]:
        """Return what rank 0 has told in the statuses that were read since the last time."""
        orders, self._orders = self._orders, []
        return orders

    def _conclude(self, status: guard.Status, step: int, batch: int) -> None:
        """Do what follows from a status that has been read."""
        if status.order != guard.NO_ORDER:
            self._orders.append(status.order)
        if status.because is None:
            self.applied_updates += 1
            self.loss_scale = self.loss_scale.after_update(self._course.train.precision)
        elif self._parts.role.rank == 0:
            self._parts.spool.event(
                "step_skipped",
                step=step,
                batch=batch,
                because=status.because,
                ranks=[rank for rank, count in enumerate(status.non_finite) if count],
                replica_norms=status.replica_norms,
            )

    def _compute(self, step: int, batch: int, poison: float) -> _Seen:
        """Compute the gradients of a step; anew with a smaller loss scale when they overflow and
        the losses do not.
        """
        began_with, tries = self.loss_scale, 1
        seen = self._attempt(step, batch, poison, guard.NO_ORDER)
        while (
            isinstance(seen.status, guard.Status)
            and seen.status.overflowed
            and self.loss_scale.may_fall
        ):
            if tries >= TRIES and self.applied_updates > 0:
                self.loss_scale = began_with  # it was not the scale's fault
                return seen
            self.loss_scale = self.loss_scale.lowered()
            tries += 1
            seen = self._attempt(step, batch, poison, seen.status.order)
        if self.loss_scale.factor != began_with.factor and self._parts.role.rank == 0:
            self._parts.spool.event(
                "loss_scale_lowered",
                step=step,
                before=began_with.factor,
                after=self.loss_scale.factor,
            )
        return seen

    def _attempt(self, step: int, batch: int, poison: float, order: guard.Told) -> _Seen:
        """Compute the gradients of a step once.

        Args:
            order: what rank 0 has told in this step already.
        """
        parts = self._parts
        passes = len(self._course.passes(batch))
        if self._is_ordered and passes not in self._covers:
            self._covers[passes] = covers_of(parts.plan, passes)
        parts.gradients.begin(poison / self.loss_scale.factor, self._covers.get(passes, ()))
        result = self._passes(batch)
        began = time.perf_counter()
        with parts.spool.pulse.doing(Activity.WAIT):
            sync = parts.gradients.finish()
        for bucket, (stage, left, arrived, num_bytes) in enumerate(sync.flights):
            parts.meter.note("reduce", left, arrived, stage, bucket, num_bytes)
        if sync.flights:
            parts.meter.note("wait_reduce", began, began + sync.seconds)
        if parts.desk is not None and order == guard.NO_ORDER:
            order = parts.desk.next()
        order = order if parts.role.rank == 0 else guard.NO_ORDER
        began = time.perf_counter()
        status, gate = self._shared(result, order)
        ended = time.perf_counter()
        parts.meter.note("status", began, ended)
        return _Seen(status, sync, result.data_s, ended - began, gate)

    def _shared(
        self, result: _Passes, order: guard.Told
    ) -> tuple[guard.Status | LateStatus, Gate | None]:
        """Share the status of a step: as it is read, or as it stays on the device."""
        parts = self._parts
        if self._late is not None:
            own, summed = parts.gradients.own_on_device(), parts.gradients.summed_on_device()
            seen = LateContribution(result.losses, own, summed, result.span_s, order)
            return self._late.share(seen)
        told = guard.Contribution(
            result.losses,
            parts.gradients.own_norms(),
            parts.gradients.summed_norms(),
            result.span_s,
            order,
        )
        mine = self._vector.encode(told, parts.role)
        with parts.spool.pulse.doing(Activity.WAIT):
            vector = guard.share(mine, parts.groups.world)
        return self._vector.decode(vector), None

    def _passes(self, batch: int) -> _Passes:
        """Run all passes of a step."""
        parts, runs = self._parts, self._course.passes(batch)
        losses: dict[int, Any] = {}
        span_s = data_s = 0.0
        for number, run in enumerate(runs):
            started = time.perf_counter()
            with parts.spool.pulse.doing(Activity.DATA):
                share = parts.reader.read(run)
            ended = time.perf_counter()
            data_s += ended - started
            parts.meter.note("data", started, ended)
            leaf = number * parts.plan.micro_batches
            leaf += first_micro_batch(parts.plan, parts.role.replica)
            parts.gradients.begin_pass(leaf)
            parts.draws.begin(run)
            seen = parts.pipeline.run(
                share.inputs,
                share.targets,
                is_final=run == runs[-1],
                loss_scale=self.loss_scale.factor,
            )
            losses.update(enumerate(seen.losses, start=leaf))
            span_s += seen.span_s
        return _Passes(losses, span_s, data_s)

    def begin_after_wait(self) -> None:
        """Count the next step from now: what lay before (starting, holding) belongs to no step."""
        self._boundary = time.perf_counter()

    def _clip_factor(self, grad_norm: float) -> float:
        """Clip by the global norm (Pascanu et al., 2013, section 3.2)."""
        limit = self._course.train.optimizer.grad_clip
        return 1.0 if limit is None else min(1.0, limit / (grad_norm + CLIP_EPSILON))
