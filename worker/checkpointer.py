"""Saving one rank's part of a run, told by events."""

from __future__ import annotations

import time

from trainmaster.errors import ConflictError
from trainmaster.ids import checkpoint_id
from trainmaster.layout import roles
from trainmaster.manifest import Parent
from trainmaster.wire import Assignment, Resume
from worker.checkpoint.peers import Peers
from worker.checkpoint.same_store import prove_same_store
from worker.checkpoint.writer import CheckpointWriteError, NonFiniteStateError, save
from worker.step import Course, Machinery
from worker.storage import open_storage
from worker.training_state import Position, tensors_of


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
            "spec": self._assignment.spec.model_dump(mode="json"),
        }


def prove_store(assignment: Assignment, parts: Machinery) -> None:
    """Let a run on one node pass, and one on several nodes whose store all of them see.

    Raises:
        UserError: some node sees another one.
        UnavailableError: it is out of reach now.
    """
    plan = assignment.plan
    nodes = [role.node for role in roles(plan)]
    if len(set(nodes)) > 1:
        prove_same_store(
            open_storage(assignment.checkpoint_root),
            Peers(parts.groups.checkpoint, parts.role.rank, plan.world_size),
            rank=parts.role.rank,
            nodes=nodes,
        )


def parent_of(resume: Resume | None) -> Parent | None:
    """Return the manifest's word for where this generation began."""
    if resume is None:
        return None
    return Parent(checkpoint=resume.checkpoint, manifest_sha256=resume.manifest_sha256)
