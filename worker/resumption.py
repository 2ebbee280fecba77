"""Where a rank's training begins: at nothing, or where a checkpoint left off."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from trainmaster.checkpoint.manifest import MANIFEST_NAME, STATE_NAME, Manifest
from trainmaster.checkpoint.verified import NOTHING
from trainmaster.errors import IntegrityError, Problem, SpecError, UnavailableError
from trainmaster.ids import parse_checkpoint_folder
from trainmaster.layout import nodes_of
from trainmaster.storage import MEMORY_SCHEME, Storage
from trainmaster.wire import Resume
from worker import guard
from worker.checkpoint.peers import CheckpointWriteError, Peers
from worker.checkpoint.reader import open_checkpoint
from worker.checkpoint.recall import files_for, recall
from worker.checkpoint.tensors import as_shard
from worker.data.agreement import refuse_changed
from worker.launch import Launch
from worker.model.precision import LossScale
from worker.step import Machinery
from worker.storage import open_storage
from worker.training_state import (
    Position,
    named_for_loading,
    optimizer_tensors,
    position_of,
    refuse_counters_ahead,
)


def restore(launch: Launch, parts: Machinery) -> Position:
    """Fill weights and optimizer state from the checkpoint where the generation begins; without
    one, from nothing. What the nodes hold in memory is not read from the store. A copy in a store
    that cannot be used is passed over for the next: all hold the same bytes, as the digest of the
    manifest says.

    Raises:
        IntegrityError: its bytes are not what its digests say, or some are missing.
        UserError: it is of another model, or was trained on a text that has changed since.
    """
    assignment, resume = launch.assignment, launch.assignment.resume
    if resume is None:
        return Position(0, 0, LossScale.initial(assignment.spec.train.precision))
    started = time.perf_counter()
    position, why_not = _from_memory(launch, parts, resume)
    source = "memory" if position is not None else "store"
    if position is None:
        if resume.location.startswith(MEMORY_SCHEME):
            raise IntegrityError(
                f"{resume.checkpoint} is only kept in memory, and {why_not}",
                file=MANIFEST_NAME,
                expected=resume.manifest_sha256,
                seen=NOTHING,
            )
        position = _from_stores(launch, parts, resume)
    if parts.role.rank == 0:
        parts.spool.event(
            "checkpoint_restored",
            checkpoint=resume.checkpoint,
            step=resume.step,
            source=source,
            because=why_not,
            seconds=time.perf_counter() - started,
        )
    return position


def _from_stores(launch: Launch, parts: Machinery, resume: Resume) -> Position:
    storage = open_storage(launch.assignment.checkpoint_root)
    *copies, last = (resume.location, *resume.copies)
    for location in copies:
        try:
            return _read(storage, location, launch, parts)
        except (IntegrityError, UnavailableError, OSError) as error:
            # What is filled by now is a mixture: the next copy fills all of it again.
            damage = error if isinstance(error, IntegrityError) else None
            parts.spool.event(
                "copy_passed_over",
                checkpoint=resume.checkpoint,
                location=location,
                because=str(error),
                damaged=damage is not None,
                file=damage.file if damage else None,
                block=damage.block if damage else None,
                expected=damage.expected if damage else None,
                seen=damage.seen if damage else None,
            )
    return _read(storage, last, launch, parts)


def _from_memory(launch: Launch, parts: Machinery, resume: Resume) -> tuple[Position | None, str]:
    """Restore from what the nodes hold in memory; return None and why, where they cannot. A
    collective over all ranks.
    """
    name = resume.location.rpartition("/")[2]
    here = launch.memory if launch.assignment.spec.checkpoint.memory == "auto" else None
    off = here is None or parse_checkpoint_folder(name) is None
    if guard.share([float(off)], parts.groups.world) != [0.0]:
        return None, "no memory is set aside for it on every node"
    assert here is not None, "all have one"
    plan = launch.assignment.plan
    peers = Peers(parts.groups.checkpoint, parts.role.rank, plan.world_size)

    def needed(manifest: Manifest) -> set[str]:
        state = optimizer_tensors(manifest, parts.gradients.pieces)
        wanted = named_for_loading(parts.layers, state, parts.role)
        return {STATE_NAME, *files_for(manifest, wanted)}

    try:
        held = recall(
            here / name,
            resume.manifest_sha256,
            peers=peers,
            nodes=nodes_of(plan),
            needed=needed,
        )
    except CheckpointWriteError as error:
        return None, error.message
    if not held:
        return None, "the nodes do not hold it"
    position, wrong = None, ""
    try:
        position = _read(open_storage(here.as_uri()), f"{here.as_uri()}/{name}", launch, parts)
    except (IntegrityError, UnavailableError) as error:
        wrong = f"rank {parts.role.rank}: {error.message}"
    told = [each.decode() for each in peers.collect(wrong.encode())]
    found = "; ".join(each for each in told if each)
    return (None, found) if found else (position, "")


def _read(storage: Storage, location: str, launch: Launch, parts: Machinery) -> Position:
    assignment, resume = launch.assignment, launch.assignment.resume
    assert resume is not None, "there is something to read"
    precision = assignment.spec.train.precision
    found = open_checkpoint(storage, location, manifest_sha256=resume.manifest_sha256)
    position = position_of(found.state, expected_step=resume.step, precision=precision)
    if found.state.get("data_source") == assignment.spec.data.source:
        refuse_changed(found.state.get("data_sha256"), parts.data_sha256)
    steps = {
        "parallel.sync_every": assignment.plan.sync_every,
        "train.batch_ramp_steps": assignment.spec.train.batch_ramp_steps,
    }
    refuse_other_steps(found.state, steps)
    if assignment.spec.train.determinism == "layout":
        refuse_other_micro_batch(found.manifest.layout, assignment.plan.micro_batch)
    state = optimizer_tensors(found.manifest, parts.gradients.pieces)
    found.load(named_for_loading(parts.layers, state, parts.role))
    refuse_counters_ahead(state, applied_updates=position.applied_updates)
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
    if state.get("step") == 0:
        return  # nothing was consumed yet
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


def refuse_other_micro_batch(layout: Mapping[str, Any], now: int) -> None:
    """Refuse to go on with other bits where the same ones were promised in any layout.

    Args:
        layout: the checkpoint's.

    Raises:
        SpecError: its micro-batches were of another size.
    """
    saved = layout.get("micro_batch", now)
    if saved != now:
        message = (
            f"{now} would change the bits that train.determinism 'layout' promises: the checkpoint "
            f"was made with micro-batches of {saved}; leave it at that, or amend determinism"
        )
        raise SpecError([Problem("parallel.micro_batch", message)])
