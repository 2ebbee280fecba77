"""Saving and restoring one rank's part of a run, told by events."""

from __future__ import annotations

import time
from typing import Any

from trainmaster.errors import ConflictError, Problem, SpecError
from trainmaster.ids import checkpoint_id
from trainmaster.manifest import Parent
from trainmaster.wire import Assignment, Resume
from worker.checkpoint.reader import open_checkpoint
from worker.checkpoint.tensors import as_shard
from worker.checkpoint.writer import CheckpointWriteError, NonFiniteStateError, save
from worker.data.agreement import refuse_changed
from worker.precision import LossScale
from worker.step import Course, Machinery
from worker.storage import open_storage
from worker.training_state import (
    Position,
    named_for_loading,
    optimizer_tensors,
    position_of,
    tensors_of,
)


class Checkpointer:
    """Takes the checkpoints of one generation. All ranks call it at the same steps."""

    def __init__(self, assignment: Assignment, parts: Machinery, course: Course) -> None:
        self._assignment = assignment
        self._parts = parts
        self._course = course
        self._storage = open_storage(assignment.checkpoint_root)
        self._last_step = assignment.resume.step if assignment.resume else 0
        self.stall_s = 0.0
        """Seconds that the last attempt held up training."""

    def save(self, position: Position) -> str | None:
        """Commit the state after `position.step`; return why that failed, the same on every rank,
        or None.

        What is committed already is not written again. A failure costs a checkpoint, not the run.
        """
        if position.step == self._last_step:
            self.stall_s = 0.0
            return None
        started = time.perf_counter()
        because = self._save(position)
        self.stall_s = time.perf_counter() - started
        if because is None:
            self._last_step = position.step
        elif self._parts.role.rank == 0:
            self._parts.spool.event("checkpoint_failed", step=position.step, because=because)
        return because

    def _save(self, position: Position) -> str | None:
        parts, assignment = self._parts, self._assignment
        tensors = tensors_of(parts.layers, parts.gradients.pieces, parts.optimizer, parts.role)
        started = time.perf_counter()
        try:
            saved = save(
                self._storage,
                run=assignment.run,
                generation=assignment.generation,
                step=position.step,
                layout=assignment.plan.model_dump(mode="json", exclude={"predicted"}),
                parent=parent_of(assignment.resume),
                tensors=tensors,
                state=self._state(position) if parts.role.rank == 0 else None,
                group=parts.groups.checkpoint,
                rank=parts.role.rank,
                world_size=assignment.plan.world_size,
            )
        except (CheckpointWriteError, NonFiniteStateError, ConflictError) as error:
            return error.message
        if parts.role.rank == 0:
            resume = assignment.resume
            parts.spool.event(
                "checkpoint_committed",
                checkpoint=checkpoint_id(assignment.run, assignment.generation, position.step),
                step=position.step,
                location=saved.location,
                manifest_sha256=saved.manifest_sha256,
                bytes=saved.bytes,
                files=saved.files,
                stall_s=time.perf_counter() - started,
                parent=resume.checkpoint if resume else None,
            )
            parts.faults.after_commit(position.step, saved.location, saved.manifest)
        return None

    def _state(self, position: Position) -> dict[str, object]:
        train = self._course.train
        return {
            "step": position.step,
            "applied_updates": position.applied_updates,
            "loss_scale": [position.loss_scale.factor, position.loss_scale.updates],
            "seed": train.seed,
            "global_batch": train.global_batch,
            "sync_every": self._course.sync_every,
            "batch_ramp_steps": train.batch_ramp_steps,
            "data_source": self._assignment.spec.data.source,
            "data_sha256": self._parts.data_sha256,
            "steps": train.steps,
            "skip": [list(each) for each in self._course.skip],
            "lr_windows": [list(each) for each in self._course.lr_windows],
            "optimizer": train.optimizer.model_dump(mode="json"),
        }


def restore(assignment: Assignment, parts: Machinery) -> Position:
    """Fill weights and optimizer state from the checkpoint where the generation begins; without
    one, from nothing.

    Raises:
        IntegrityError: its bytes are not what its digests say, or some are missing.
        UserError: it is of another model, or was trained on a text that has changed since.
    """
    resume, precision = assignment.resume, assignment.spec.train.precision
    if resume is None:
        return Position(0, 0, LossScale.initial(precision))
    found = open_checkpoint(
        open_storage(assignment.checkpoint_root),
        resume.location,
        manifest_sha256=resume.manifest_sha256,
    )
    position = position_of(found.state, expected_step=resume.step, precision=precision)
    if found.state.get("data_source") == assignment.spec.data.source:
        refuse_changed(found.state.get("data_sha256"), parts.data_sha256)
    steps = {
        "parallel.sync_every": assignment.plan.sync_every,
        "train.batch_ramp_steps": assignment.spec.train.batch_ramp_steps,
    }
    refuse_other_steps(found.state, steps)
    state = optimizer_tensors(found.manifest, parts.gradients.pieces)
    found.load(named_for_loading(parts.layers, state, parts.role))
    parts.gradients.refresh()
    parts.optimizer.adopt({name: as_shard(tensor).tensor for name, tensor in state.items()})
    return position


def refuse_other_steps(state: dict[str, Any], now: dict[str, int]) -> None:
    """Refuse to go on with steps of another size: which samples come next follows from their
    number.

    Args:
        now: the passes of a step, and over how many steps they grow to that, by key of the spec.

    Raises:
        SpecError: they differ from the checkpoint's.
    """
    usual = {"parallel.sync_every": 1, "train.batch_ramp_steps": 0}
    problems = [
        Problem(
            key,
            f"{value} would change which samples a step consumes: the steps of the checkpoint were "
            f"taken with {saved}; leave it at that, or submit a new run",
        )
        for key, value in now.items()
        if (saved := state.get(key.rpartition(".")[2], usual[key])) != value
    ]
    if problems:
        raise SpecError(problems)


def parent_of(resume: Resume | None) -> Parent | None:
    """Return the manifest's word for where this generation began."""
    if resume is None:
        return None
    return Parent(checkpoint=resume.checkpoint, manifest_sha256=resume.manifest_sha256)
