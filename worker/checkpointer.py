"""When one rank's part of a run is saved, and what it holds. How it is saved beside training is in
`checkpoint.saver`.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from trainmaster.checkpoint.manifest import Parent
from trainmaster.interval import Pace, choose
from trainmaster.layout import nodes_of
from trainmaster.wire import Assignment, Resume
from worker import guard
from worker.checkpoint.memory import MemoryTier
from worker.checkpoint.part import Copies
from worker.checkpoint.peers import Peers
from worker.checkpoint.same_store import prove_same_store
from worker.checkpoint.saver import Origin, Saver
from worker.checkpoint.transfer import transfer_of
from worker.checkpoint.writer import Saved
from worker.launch import Launch
from worker.step import Course, Machinery
from worker.storage import open_storage
from worker.training_state import Position, tensors_of

_SEGMENTS: Final = "segments-g"
CHANGE_RATIO: Final = 0.2
"""An interval is changed when the new one differs by more."""


class Checkpointer:
    """Takes the checkpoints of one generation. All ranks call it at the same steps."""

    def __init__(self, launch: Launch, parts: Machinery, course: Course) -> None:
        assignment = launch.assignment
        asked = assignment.spec.checkpoint
        self._assignment = assignment
        self._parts = parts
        self._course = course
        self._memory_every = asked.memory_every_steps if asked.memory == "auto" else 0
        self._every = assignment.checkpoint_every
        self._anchor = 0
        self._last_step = assignment.resume.step if assignment.resume else 0
        self._steps, self._steps_s = 0, 0.0
        role = parts.role
        peers = Peers(parts.groups.checkpoint, role.rank, assignment.plan.world_size)
        nodes = nodes_of(assignment.plan)
        folder = launch.memory if asked.memory == "auto" else None
        shared = not self._any_rank(folder is None)
        self._saver = Saver(
            open_storage(assignment.checkpoint_root),
            Origin(
                run=assignment.run,
                generation=assignment.generation,
                layout=assignment.plan.model_dump(mode="json", exclude={"predicted"}),
                parent=parent_of(assignment.resume),
            ),
            peers=peers,
            copies=Copies(
                _segments(folder, assignment.generation) if folder and shared else None,
                role.rank,
                sharers=nodes.count(nodes[role.rank]),
                transfer=transfer_of(parts.device),
            ),
            memory=MemoryTier(folder, peers, nodes) if folder and shared else None,
            when_busy=asked.when_busy,
            any_rank=self._any_rank,
            tell=parts.spool.event if role.rank == 0 else None,
            committed=self._committed,
        )
        self.stall_s = 0.0
        """Seconds that checkpoints have held up training since this was last set to 0."""

    @property
    def failures(self) -> int:
        """How many in a row have failed lately."""
        return self._saver.failures

    @property
    def copy_bytes(self) -> int:
        """Host memory that copies take on this rank."""
        return self._saver.copy_bytes

    def prepare(self) -> None:
        """Have the memory for copies made meanwhile; once there is something to copy."""
        self._saver.prepare(self._tensors())

    def after_step(self, position: Position, step_time_s: float) -> None:
        """Begin what is due after `position.step`, a step that took `step_time_s`.

        Raises:
            Exception: what went wrong in the background and nobody had planned for.
        """
        self._saver.poll()
        self._steps += 1
        self._steps_s += step_time_s
        if self._is_due_for_store(position.step):
            self._adapt(position.step)
            self._begin(position, may_skip=True)
        elif self.is_due(position.step):
            self._begin(position, may_skip=True, to_store=False)

    def is_due(self, step: int) -> bool:
        """Return whether the state after `step` is to be saved somewhere."""
        memory_every = self._memory_every
        return self._is_due_for_store(step) or bool(memory_every and step % memory_every == 0)

    def _is_due_for_store(self, step: int) -> bool:
        return step < self._course.train.steps and (step - self._anchor) % self._every == 0

    def save(self, position: Position, *, last: bool = False) -> str | None:
        """Commit the state after `position.step`; return why that failed, the same on every rank,
        or None.

        What is committed already is not written again. A failure costs a checkpoint, not the run.

        Args:
            last: the ranks end after it, so that nothing need stay in memory.
        """
        if position.step == self._last_step:
            return None
        because = self._outcome(position.step)
        if because is not None:
            self._begin(position, may_skip=False, to_memory=not last)
            because = self._outcome(position.step)
        return because

    def close(self, *, forget: bool) -> None:
        """Wait for what is in flight and give the memory back.

        Args:
            forget: the run has come to its end here, so nobody goes on from memory.
        """
        self._saver.close(forget=forget)

    def _begin(
        self,
        position: Position,
        *,
        may_skip: bool,
        to_store: bool = True,
        to_memory: bool = True,
    ) -> None:
        pace = {"step_time_s": self._steps_s / self._steps} if self._steps else {}
        self._steps, self._steps_s = 0, 0.0
        stall_s = self._saver.begin(
            position.step,
            self._tensors(),
            self._state(position) if self._parts.role.rank == 0 else None,
            to_store=to_store,
            to_memory=to_memory,
            may_skip=may_skip,
            pace=pace,
        )
        self._held_up(stall_s)

    def _held_up(self, seconds: float) -> None:
        """Count that training has just waited for a checkpoint."""
        self.stall_s += seconds
        now = time.perf_counter()
        self._parts.meter.note_before("checkpoint", now - seconds, now)

    def _outcome(self, step: int) -> str | None:
        """Wait for what is in flight; return None if `step` is stored, else why it is not."""
        started = time.perf_counter()
        self._saver.finish()
        self._held_up(time.perf_counter() - started)
        last = self._saver.last
        if last is None or last.step != step or not last.to_store:
            return "it has not been saved"
        if last.because is None:
            self._last_step = step
        return last.because

    def _adapt(self, step: int) -> None:
        """Have the next checkpoints come as often as what was measured asks for. Rank 0 judges for
        all.
        """
        if self._assignment.mtbf_s is None:
            return
        told, every = self._judged(self._assignment.mtbf_s)
        [agreed] = guard.share([float(every)], self._parts.groups.world)
        before, self._every = self._every, int(agreed) or self._every
        if self._every != before:
            self._anchor = step
            if self._parts.role.rank == 0:
                self._parts.spool.event(
                    "interval_chosen",
                    step=step,
                    every_steps=self._every,
                    before=before,
                    because=told,
                )

    def _judged(self, mtbf_s: float) -> tuple[str, int]:
        """Return why, and how many steps the interval is to be; 0 for as it is, and elsewhere than
        on rank 0.
        """
        last = self._saver.last
        if self._parts.role.rank != 0 or last is None or not self._steps or last.because:
            return "", 0
        pace = Pace(last.stall_s, last.write_s, self._steps_s / self._steps)
        chosen = choose(pace, mtbf_s=mtbf_s, steps=self._course.train.steps)
        differs = abs(chosen.every_steps - self._every) > CHANGE_RATIO * self._every
        return (chosen.told, chosen.every_steps) if differs else ("", 0)

    def _any_rank(self, says: bool) -> bool:
        return guard.share([float(says)], self._parts.groups.world) != [0.0]

    def _tensors(self) -> Mapping[str, Any]:
        parts = self._parts
        return tensors_of(parts.layers, parts.gradients.pieces, parts.optimizer, parts.role)

    def _committed(self, saved: Saved) -> None:
        assert saved.location is not None, "what is committed lies somewhere"
        self._parts.faults.after_commit(saved.manifest.step, saved.location, saved.manifest)

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
    nodes = nodes_of(plan)
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


def _segments(memory: Path, generation: int) -> Path:
    """Return the folder for a generation's copies, once those of older ones are gone: on this node
    their ranks are dead.
    """
    own = memory / f"{_SEGMENTS}{generation}"
    for other in memory.glob(f"{_SEGMENTS}*"):
        if other != own:
            shutil.rmtree(other, ignore_errors=True)
    return own
