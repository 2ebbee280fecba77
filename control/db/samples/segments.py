"""Which samples are asked for: stretches of steps, each of one generation. Pure.

After a rollback some steps exist twice. The surviving segments hold each step once
(`control.lineage`); what lies off them stays stored and is shown in grey.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from control.lineage import ENDLESS, lineage_of
from control.snapshot import Attempt
from trainmaster.errors import NotFoundError


@dataclass(frozen=True, slots=True)
class Segment:
    """The steps after `after_step` up to and with `last_step` of one generation."""

    generation: int
    after_step: int = 0
    last_step: int = ENDLESS


def surviving(attempts: Sequence[Attempt]) -> tuple[Segment, ...]:
    """Return the segments that lead to the newest generation, ascending by step; empty ones are
    left out.
    """
    began = {attempt.generation: attempt.resumed_from_step for attempt in attempts}
    lineage = lineage_of(attempts, max(began, default=None))
    return tuple(
        Segment(generation, began[generation], last_step)
        for generation, last_step in sorted(lineage.items())
        if began[generation] < last_step
    )


def whole(generations: Iterable[int]) -> tuple[Segment, ...]:
    """Return everything these generations ever did."""
    return tuple(Segment(generation) for generation in sorted(generations))


def require_rank(run: str, attempts: Iterable[Attempt], rank: int | None) -> None:
    """Refuse a rank that no attempt of a run has had; before the first none is known.

    Raises:
        NotFoundError: there has been no such rank.
    """
    sizes = [attempt.plan.world_size for attempt in attempts]
    if rank is not None and sizes and rank >= max(sizes):
        raise NotFoundError(f"run {run!r} has had no rank {rank}: ranks 0 to {max(sizes) - 1}")


def newest_step(attempts: Sequence[Attempt], segments: Iterable[Segment]) -> int | None:
    """Return the newest step of `segments` of which a sample is stored; None before the first."""
    last = {attempt.generation: attempt.last_step for attempt in attempts}
    steps = [
        min(told, segment.last_step)
        for segment in segments
        if (told := last[segment.generation]) is not None and told > segment.after_step
    ]
    return max(steps, default=None)
