"""Where a rank's training begins: at nothing, or where a checkpoint left off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.errors import Problem, SpecError
from trainmaster.wire import Assignment
from worker.checkpoint.reader import open_checkpoint
from worker.checkpoint.tensors import as_shard
from worker.data.agreement import refuse_changed
from worker.precision import LossScale
from worker.step import Machinery
from worker.storage import open_storage
from worker.training_state import (
    Position,
    named_for_loading,
    optimizer_tensors,
    position_of,
    refuse_counters_ahead,
)


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
