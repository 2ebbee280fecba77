"""One rank, from start to exit. Read this file first.

A rank is told everything by its `Launch`: which run and generation, which plan, where the others
meet, where to write what it sees. It meets the other ranks, builds its layers, restores a
checkpoint if there is one, and then repeats: one step, and at the step's boundary what all ranks
know by then to be due: hold, checkpoint, stop. It talks to nobody but the other ranks and the
checkpoint store; its spool file is read by the node's agent.

How it ends is a fact, told by its exit code and its last event (`trainmaster.errors.ExitCode`).
"""

from __future__ import annotations

import faulthandler
import os
import sys
import time
import traceback
from collections import deque
from typing import Final

import torch

from trainmaster import bands
from trainmaster.errors import ExitCode, IntegrityError
from trainmaster.ids import rank_stream
from trainmaster.layout import roles
from trainmaster.metrics import STEP_METRIC_NAMES
from trainmaster.orders import OrderWord
from trainmaster.plugins import add_schedules
from trainmaster.pulse import Activity, Section
from trainmaster.spool import Header
from worker import groups, guard, settings
from worker.assembly import assemble, course_of
from worker.checkpointer import Checkpointer, prove_store
from worker.devices import ComputeDevice
from worker.failure import failure_of
from worker.guard import Told
from worker.launch import Launch
from worker.memory import MemoryLimit
from worker.reporting.clock import Clocks
from worker.reporting.pulsefile import STACKS_SUFFIX, show_stacks_when_asked
from worker.reporting.recorder import Recorder
from worker.reporting.spoolfile import SpoolFile
from worker.reporting.telemetry import Telemetry
from worker.resumption import restore
from worker.step import Course, Machinery, Stepper
from worker.training_state import Position, whole_weights
from worker.weights_digest import weights_sha256

HOLD_BEAT_S: Final = 0.25
"""Between two looks for a release while held."""
_STOPPING: Final = {OrderWord.STOP, OrderWord.STOP_WITHOUT_CHECKPOINT}


def main(launch: Launch) -> int:
    """Train until the end, an order to stop, or a failure; return the exit code.

    After a failure it does not return but ends the process at once: a rank that lingers keeps its
    peers waiting.
    """
    assignment = launch.assignment
    faulthandler.enable()  # a crash in native code leaves the Python stack in the rank's log
    stream = rank_stream(assignment.run, assignment.generation, launch.rank)
    spool = SpoolFile(launch.spool, Header(stream, STEP_METRIC_NAMES))
    show_stacks_when_asked(launch.spool.with_suffix(STACKS_SUFFIX))
    try:
        train(launch, spool)
    except BaseException as error:  # a workload may raise what is no Exception, too
        failure = failure_of(error)
        told = traceback.format_exc()
        sys.stderr.write(told)
        sys.stdout.flush()
        spool.event(
            "rank_failed", because=failure.because, exit_code=int(failure.exit_code), traceback=told
        )
        spool.close()
        os._exit(failure.exit_code)
    spool.close()
    return ExitCode.DONE


def train(launch: Launch, spool: SpoolFile) -> None:
    """Assemble this rank, restore, and train."""
    assignment = launch.assignment
    torch.set_num_threads(settings.read().num_threads)
    ComputeDevice.of(launch.device).enter()
    add_schedules()
    course = course_of(assignment)
    memory = MemoryLimit(launch.emulation.memory_bytes)
    parts = assemble(launch, spool, course)
    memory.check("before the first step")
    spool.pulse.enter(Section.RESTORING)
    prove_store(assignment, parts)
    try:
        position = restore(launch, parts)
    except IntegrityError as error:
        assert assignment.resume is not None, "only a checkpoint can be damaged"
        spool.event(
            "restore_failed",
            checkpoint=assignment.resume.checkpoint,
            because=error.message,
            file=error.file,
            block=error.block,
            expected=error.expected,
            seen=error.seen,
        )
        raise
    Training(launch, spool, parts, course, position, memory).run()
    groups.leave(parts.groups)


class Training:
    """The loop of steps, and what happens between two of them."""

    def __init__(
        self,
        launch: Launch,
        spool: SpoolFile,
        parts: Machinery,
        course: Course,
        start: Position,
        memory: MemoryLimit,
    ) -> None:
        self._spool = spool
        self._memory = memory
        self._device_kind = launch.device.kind
        self._parts = parts
        self._start = start
        self._waiting: deque[Told] = deque()
        """Orders that all ranks have heard of."""
        self._last_step = course.train.steps
        self._bands_left = bands.left(parts.plan, global_batch=course.train.global_batch)
        self._recorder = Recorder(
            spool,
            parts.meter,
            Clocks(
                parts.groups.world,
                [role.node for role in roles(parts.plan)],
                parts.role.rank,
            ),
            every=launch.assignment.spec.telemetry.timeline_every,
        )
        self._telemetry = Telemetry(
            spool,
            claimed_memory_bytes=launch.emulation.memory_bytes,
            device_memory=parts.device.memory_bytes if parts.device.is_cuda else None,
        )
        self._checkpointer = Checkpointer(launch, parts, course)
        self._stepper = Stepper(
            parts,
            course,
            applied_updates=start.applied_updates,
            loss_scale=start.loss_scale,
        )

    def run(self) -> None:
        """Train from the start position to the last step, unless an order ends it before."""
        self._spool.event(
            "rank_ready", step=self._start.step, pid=os.getpid(), device_kind=self._device_kind
        )
        if self._parts.role.rank == 0:
            for sentence in self._bands_left:
                self._spool.event("band_left", because=sentence)
        self._stepper.begin_after_wait()
        for step in range(self._start.step + 1, self._last_step + 1):
            self._spool.pulse.enter(Section.STEP, step)
            records = self._recorder.wants(step)
            stall_s, self._checkpointer.stall_s = self._checkpointer.stall_s, 0.0
            record = self._stepper.run(
                step,
                checkpoint_stall_s=stall_s,
                checkpoint_failures=self._checkpointer.failures,
                records=records,
            )
            self._telemetry.record(record)
            self._memory.check(
                f"by the end of step {step}", beside_bytes=self._checkpointer.copy_bytes
            )
            if records:
                self._recorder.keep(step, record.step_time_s)
                self._stepper.begin_after_wait()
            if step == self._start.step + 1:
                self._checkpointer.prepare()
            if self._checkpointer.is_due(step):
                self._flush()
                self._spool.pulse.enter(Section.CHECKPOINT, step)
            self._checkpointer.after_step(self._position(step), record.step_time_s - stall_s)
            if step == self._last_step:
                self._stepper.settle()
            self._waiting.extend(self._stepper.take_orders())
            if self._boundaries(step):
                self._flush()
                self._checkpointer.close(forget=True)
                self._spool.event("rank_finished", step=step, ordered=True, **self._relayed())
                return
        self._finish()

    def _finish(self) -> None:
        """Take the last checkpoint and tell the digest of the weights."""
        self._flush()
        step = max(self._start.step, self._last_step)
        because = self._save(step, last=True)
        self._spool.pulse.enter(Section.ENDING)
        if because is not None:
            raise OSError(f"the last checkpoint could not be taken: {because}")
        self._checkpointer.close(forget=True)
        told, role = {}, self._parts.role
        if role.replica == 0 or role.is_divided:
            weights = whole_weights(self._parts.layers)
            if (role.replica, role.tensor) == (0, 0):
                digest = weights_sha256(weights, self._parts.groups.pipeline)
                told = {"weights_sha256": digest} if digest is not None else {}
        self._spool.event("rank_finished", step=step, ordered=False, **told, **self._relayed())

    def _relayed(self) -> dict[str, int]:
        """What went between kinds of devices, where there are several."""
        num_bytes = self._parts.groups.relay.num_bytes
        return {"relayed_bytes": num_bytes} if num_bytes else {}

    def _boundaries(self, step: int) -> bool:
        """Follow what waits at the end of `step`; return whether to end here."""
        while self._waiting:
            if self._boundary(self._waiting.popleft(), step):
                return True
        return False

    def _boundary(self, order: Told, step: int) -> bool:
        """Follow rank 0's order at the end of `step`, and further ones while held; return whether
        to end here.
        """
        held = False
        while True:
            word, seq = order
            if word is not OrderWord.NONE:
                because = self._follow(word, step, held=held)
                self._acknowledge(seq, step, because)
                if because is None and word in _STOPPING:
                    return True
                if because is None and word is OrderWord.RELEASE:
                    self._stepper.begin_after_wait()
                    self._checkpointer.stall_s = 0.0
                    return False
                if because is None and word is OrderWord.HOLD:
                    held = True
                    self._flush()
            if not held:
                return False
            self._waiting.extend(self._stepper.take_orders())
            if self._waiting:
                order = self._waiting.popleft()
                continue
            self._spool.pulse.enter(Section.HELD, step)
            time.sleep(HOLD_BEAT_S)
            desk = self._parts.desk
            told = desk.next() if desk else guard.NO_ORDER
            with self._spool.pulse.doing(Activity.WAIT):
                order = guard.share_order(told, self._parts.groups.world)

    def _follow(self, word: OrderWord, step: int, *, held: bool) -> str | None:
        """Do what an order says on all ranks; return why it cannot be followed, or None."""
        if step == self._last_step and word is not OrderWord.CHECKPOINT:
            return "the run has just done its last step"
        if word is OrderWord.RELEASE and not held:
            return "the run is not held"
        if word in {OrderWord.CHECKPOINT, OrderWord.STOP}:
            return self._save(step, last=word is OrderWord.STOP)
        if word is OrderWord.TIMELINE:
            self._recorder.ask(step + 1)
        return None

    def _save(self, step: int, *, last: bool = False) -> str | None:
        """Take a checkpoint after `step`; return why not, or None. What was measured until here is
        written first.
        """
        self._flush()
        self._spool.pulse.enter(Section.CHECKPOINT, step)
        return self._checkpointer.save(self._position(step), last=last)

    def _flush(self) -> None:
        """Write down all that has been measured."""
        self._stepper.settle()
        self._telemetry.flush()

    def _position(self, step: int) -> Position:
        return Position(step, self._stepper.applied_updates, self._stepper.loss_scale)

    def _acknowledge(self, seq: int, step: int, because: str | None) -> None:
        desk = self._parts.desk
        if desk is None:
            return
        if because is None:
            desk.applied(seq, step)
        else:
            desk.refused(seq, step, because)
