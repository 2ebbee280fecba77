"""The history that counts: which generation made which step, what is on it, and what a new attempt
inherits. Pure.

After a rollback some steps exist twice. The lineage of a generation is the chain of its parents,
each up to the step at which the next one began; choice is by lineage, never by step number alone.

Invariant: under the skip ranges of a child, the steps up to where it began consume the same batches
as they did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from control.snapshot import Attempt, Checkpoint, LrWindow, Range, RunSnapshot
from trainmaster.batches import batch_of_step, normalise
from trainmaster.spec import RunSpec

ENDLESS = 2**62

Lineage = Mapping[int, int]
"""Generation -> the last of its steps that counts."""


def lineage_of(attempts: Sequence[Attempt], generation: int | None) -> Lineage:
    """Return the lineage that leads to `generation`, its own steps unbounded; empty for None."""
    by_generation = {attempt.generation: attempt for attempt in attempts}
    lineage: dict[int, int] = {}
    here = by_generation.get(generation) if generation is not None else None
    last_step = ENDLESS
    while here is not None and here.generation not in lineage:
        lineage[here.generation] = last_step
        last_step = min(last_step, here.resumed_from_step)
        parent = here.parent_generation
        here = by_generation.get(parent) if parent is not None else None
    return lineage


def surviving(snapshot: RunSnapshot) -> Lineage:
    """Return the lineage of the newest attempt."""
    newest = snapshot.attempt
    return lineage_of(snapshot.attempts, newest.generation if newest else None)


def up_to(attempts: Sequence[Attempt], checkpoint: Checkpoint | None) -> Lineage:
    """Return the lineage on which a generation builds that begins from `checkpoint`, or from step
    0.
    """
    if checkpoint is None:
        return {}
    return {
        **lineage_of(attempts, checkpoint.generation),
        checkpoint.generation: checkpoint.step,
    }


def is_on(lineage: Lineage, checkpoint: Checkpoint) -> bool:
    """Return whether `checkpoint` lies on `lineage`."""
    return checkpoint.step <= lineage.get(checkpoint.generation, -1)


def newest_step(snapshot: RunSnapshot) -> int:
    """Return the newest step of the surviving lineage that is known; 0 before the first."""
    newest = snapshot.attempt
    if newest is None:
        return 0
    return max(newest.last_step or 0, newest.resumed_from_step)


def inherited_skip(
    snapshot: RunSnapshot, spec: RunSpec, checkpoint: Checkpoint | None, *, forget: bool = False
) -> tuple[Range, ...]:
    """Return the skip ranges of a generation that begins from `checkpoint`.

    What lies behind the checkpoint is as the checkpoint's own generation had it; ahead of it, all
    that was ever decided to be skipped stays skipped, unless it is to be forgotten: then only what
    the spec itself skips.
    """
    asked = normalise(spec.train.skip)
    newest = snapshot.attempt
    ahead = asked if forget else normalise((*asked, *(newest.skip if newest else ())))
    if checkpoint is None:
        return ahead
    origins = [each for each in snapshot.attempts if each.generation == checkpoint.generation]
    behind = normalise(origins[0].skip) if origins else asked
    position = batch_of_step(checkpoint.step, behind) if checkpoint.step else 0
    return normalise((*_clip(behind, 1, position), *_clip(ahead, position + 1, ENDLESS)))


def inherited_lr_windows(snapshot: RunSnapshot) -> tuple[LrWindow, ...]:
    """Return the learning-rate windows that earlier decisions added to the spec's own."""
    newest = snapshot.attempt
    return newest.lr_windows if newest else ()


def _clip(ranges: Sequence[Range], first: int, last: int) -> list[Range]:
    return [
        (max(first, low), min(last, high)) for low, high in ranges if low <= last and high >= first
    ]
