"""Checkpoints taken beside training: a step waits for one copy into host memory, and no more.

The rest (judging, digesting, writing, committing, keeping in memory) is done by one thread, over a
process group of its own, on the copy alone: the tensors may change meanwhile. At most one is in
flight. When the next comes due before it is done, training waits for it, or that one is skipped.

All ranks call the same methods at the same steps. What becomes of a checkpoint is the same on all,
and rank 0 tells it as an event.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import torch

from trainmaster.checkpoint.manifest import Parent
from trainmaster.errors import ConflictError
from trainmaster.ids import checkpoint_folder, checkpoint_id
from trainmaster.storage import MEMORY_SCHEME, Storage
from worker.checkpoint.memory import MemoryTier
from worker.checkpoint.part import About, Copies, Copy, Part
from worker.checkpoint.peers import CheckpointWriteError, NonFiniteStateError, Peers
from worker.checkpoint.tensors import Shard
from worker.checkpoint.writer import Saved, save_part

Tell = Callable[..., None]
"""Takes the kind of an event and its data by name."""
Tensors = Mapping[str, torch.Tensor | Shard]
NICENESS: Final = 5
"""By how much the writing thread, and those that digest for it, give way to training."""
LEAST_URGENT: Final = 19


@dataclass(frozen=True, slots=True)
class Origin:
    """What all checkpoints of a generation have in common."""

    run: str
    generation: int
    layout: dict[str, Any]
    parent: Parent | None


@dataclass(slots=True)
class _Flight:
    """A checkpoint under way, and what has become of it."""

    step: int
    copy: Copy
    state: Mapping[str, Any] | None
    stall_s: float
    to_store: bool
    to_memory: bool
    began: float
    pace: Mapping[str, float] = field(default_factory=dict)
    because: str | None = None
    write_s: float = 0.0


class Saver:
    """Takes the checkpoints of one generation on one rank.

    Args:
        storage: the run's checkpoint folder.
        peers: over a group that nobody else uses.
        copies: the host memory to copy into; shared where `memory` is given.
        memory: where what is newest is kept too; None for nowhere.
        any_rank: returns on all ranks whether one of them says so; used by training's own thread.
        tell: takes events; given by rank 0 alone.
        committed: called with each checkpoint that is committed, on rank 0.
    """

    def __init__(
        self,
        storage: Storage,
        origin: Origin,
        *,
        peers: Peers,
        copies: Copies,
        memory: MemoryTier | None,
        when_busy: Literal["wait", "skip"],
        any_rank: Callable[[bool], bool],
        tell: Tell | None,
        committed: Callable[[Saved], None] | None = None,
    ) -> None:
        self._storage = storage
        self._origin = origin
        self._peers = peers
        self._copies = copies
        self._memory = memory
        self._when_busy = when_busy
        self._any_rank = any_rank
        self._tell_anyone = tell
        self._committed = committed
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint", initializer=_be_nice)
        self._kept_alone: int | None = None
        self._warming: Future[None] | None = None
        self._flight: tuple[_Flight, Future[None]] | None = None
        self.last: _Flight | None = None
        """What ended last."""
        self.failures = 0
        """How many in a row have failed, those that were to be stored."""

    @property
    def copy_bytes(self) -> int:
        """Host memory that copies take on this rank."""
        return self._copies.num_bytes

    def prepare(self, tensors: Tensors) -> None:
        """Have the memory for copies made and touched meanwhile, so that the first one is as fast
        as the others.
        """
        about = self._about(0)
        self._warming = self._thread.submit(self._warm, dict(tensors), about)

    def begin(
        self,
        step: int,
        tensors: Tensors,
        state: Mapping[str, Any] | None,
        *,
        to_store: bool = True,
        to_memory: bool = True,
        may_skip: bool = True,
        pace: Mapping[str, float] | None = None,
    ) -> float:
        """Copy what is to be saved of `step`, and have the rest done meanwhile; return the seconds
        that this took.

        Args:
            state: see `writer.save_part`.
            to_store: whether it is to be stored, or kept in memory alone.
            to_memory: whether it is to be kept in memory, where that is done at all.
            may_skip: False for one that somebody waits for.
            pace: what the event of its commit tells besides.
        """
        started = time.perf_counter()
        if self._flight is not None and not self._clear_the_way(step, may_skip=may_skip):
            return time.perf_counter() - started
        if self._warming is not None:
            self._warming.result()
            self._warming = None
        about = self._about(step)
        failed: OSError | None = None
        try:
            copy = self._copies.take(tensors, about)
        except OSError as error:
            failed, copy = error, Copy(about.file, 0)
        flight = _Flight(
            step=step,
            copy=copy,
            state=state,
            stall_s=time.perf_counter() - started,
            to_store=to_store,
            to_memory=to_memory,
            began=started,
            pace=pace or {},
        )
        self._flight = flight, self._thread.submit(self._save, flight, about, failed)
        return flight.stall_s

    def finish(self) -> None:
        """Wait for what is in flight; `last` tells what has become of it.

        Raises:
            Exception: what nobody had planned for, on this rank or another.
        """
        if self._flight is not None:
            flight, future = self._flight
            self._flight = None
            future.result()
            self.last = flight
            if flight.to_store:
                self.failures = self.failures + 1 if flight.because is not None else 0

    def poll(self) -> None:
        """As `finish`, if what is in flight has come to its end already."""
        if self._flight is not None and self._flight[1].done():
            self.finish()

    def close(self, *, forget: bool) -> None:
        """Finish, and give the memory back.

        Args:
            forget: nobody will go on from what is kept in memory.
        """
        self.finish()
        self._thread.shutdown()
        self._copies.discard()
        if forget and self._memory is not None:
            self._memory.forget()
            if self._kept_alone is not None:
                because = "the ranks have ended in order, and what is stored is used"
                self._tell("state_dropped", step=self._kept_alone, because=because)

    def _about(self, step: int) -> About:
        return About(self._origin.run, self._origin.generation, step, self._peers.rank)

    def _warm(self, tensors: Tensors, about: About) -> None:
        with suppress(OSError):  # the copy itself will tell, on all ranks
            self._copies.prepare(tensors, about)

    def _clear_the_way(self, step: int, *, may_skip: bool) -> bool:
        """Deal with one in flight; return whether the next may begin."""
        assert self._flight is not None, "only what is in flight is in the way"
        flight, future = self._flight
        if may_skip and self._when_busy == "skip":
            if self._any_rank(not future.done()):
                because = f"the checkpoint of step {flight.step} was still being written"
                self._tell("checkpoint_skipped", step=step, because=because)
                return False
        elif not future.done():
            waiting = time.perf_counter()
            self.finish()
            waited_s = time.perf_counter() - waiting
            self._tell("checkpoint_waited", step=step, behind=flight.step, waited_s=waited_s)
        self.finish()
        return True

    def _save(self, flight: _Flight, about: About, failed: OSError | None) -> None:
        """Do all that is left to do once the copy is taken. In the thread."""

        def part() -> Part:
            if failed is not None:
                raise failed
            return flight.copy.part()

        def save_to(storage: Storage | None) -> Saved:
            return save_part(
                storage,
                part,
                about=about,
                layout=self._origin.layout,
                parent=self._origin.parent,
                state=flight.state,
                peers=self._peers,
            )

        saved: Saved | None = None
        try:
            saved = save_to(self._storage if flight.to_store else None)
            flight.write_s = time.perf_counter() - flight.began
            if flight.to_store:
                self._tell_committed(flight, saved)
        except (CheckpointWriteError, NonFiniteStateError, ConflictError) as error:
            flight.because = error.message
            self._tell("checkpoint_failed", step=flight.step, because=error.message)
            is_sound = isinstance(error, CheckpointWriteError) and flight.to_store
            if (
                is_sound and flight.to_memory and self._memory is not None
            ):  # the store failed, the state did not
                with suppress(CheckpointWriteError, NonFiniteStateError):
                    saved = save_to(None)
        if saved is not None and flight.to_memory and self._memory is not None:
            self._keep(self._memory, flight, saved)

    def _tell(self, kind: str, **data: Any) -> None:
        if self._tell_anyone is not None:
            self._tell_anyone(kind, **data)

    def _tell_committed(self, flight: _Flight, saved: Saved) -> None:
        if self._peers.rank != 0:
            return
        parent = self._origin.parent
        self._tell(
            "checkpoint_committed",
            checkpoint=checkpoint_id(self._origin.run, self._origin.generation, flight.step),
            step=flight.step,
            location=saved.location,
            manifest_sha256=saved.manifest_sha256,
            bytes=saved.bytes,
            files=saved.files,
            stall_s=flight.stall_s,
            write_s=flight.write_s,
            copy_bytes=self.copy_bytes,
            parent=parent.checkpoint if parent else None,
            **flight.pace,
        )
        if self._committed is not None:
            self._committed(saved)

    def _keep(self, memory: MemoryTier, flight: _Flight, saved: Saved) -> None:
        try:
            memory.keep(saved, flight.copy)
        except CheckpointWriteError as error:
            # Too little memory now will be too little for the next one.
            self._memory = None
            self._copies.give_up_sharing()
            memory.forget()
            self._tell("memory_given_up", step=flight.step, because=error.message)
            return
        self._copies.kept = flight.copy.segment
        stored = flight.to_store and flight.because is None
        self._kept_alone = None if stored else flight.step
        folder = checkpoint_folder(self._origin.generation, flight.step)
        self._tell(
            "state_kept",
            checkpoint=checkpoint_id(self._origin.run, self._origin.generation, flight.step),
            step=flight.step,
            location=f"{MEMORY_SCHEME}//{self._origin.run}/{folder}",
            manifest_sha256=saved.manifest_sha256,
            bytes=saved.bytes,
            files=saved.files,
            stored=stored,
            copies=1 + memory.has_copies,
            parent=self._origin.parent.checkpoint if self._origin.parent else None,
        )


def _be_nice() -> None:
    """Give way to training. Threads that this one makes inherit it."""
    thread = threading.get_native_id()
    with suppress(OSError):
        nice = os.getpriority(os.PRIO_PROCESS, thread) + NICENESS
        os.setpriority(os.PRIO_PROCESS, thread, min(nice, LEAST_URGENT))
