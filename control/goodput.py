"""Where the wall time of a run went: every second is in exactly one bucket, and the buckets sum to
the wall time. Pure.

Two layers: what the run's state was, from its history, and on top of it the steps and the reading
of checkpoints, each from its start to its end by the ranks' clocks. Their time is taken out of
whatever state the run was shown in meanwhile, since a state is noticed a little late.

| bucket | seconds |
|---|---|
| productive_step_s | in steps that count: on the surviving lineage, and applied |
| degraded_step_s | the same, while the run trains on less than was asked for |
| redone_step_s | in steps that were lost: a later generation began before them |
| skipped_step_s | in steps on the lineage whose update was skipped |
| data_wait_s, checkpoint_stall_s | waiting for data in steps, for checkpoints between them |
| idle_s | queued: waiting for nodes |
| starting_s | ranks begin, build their layers and meet |
| restoring_s | rank 0 reads a checkpoint and has its state again |
| recovering_s | after an attempt that ended early, until the next begins |
| between_steps_s | running, but in no step that is known |
| paused_s, held_s, ending_s | by a person; ending is pausing or stopping |
| unreachable_s | out of contact, and in no step that is known |
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from control.lifecycle import TERMINAL, State
from control.lineage import Lineage

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.integer[Any]]
Bools = npt.NDArray[np.bool_]

_BUCKET_OF: Final = {
    State.QUEUED: "idle_s",
    State.STARTING: "starting_s",
    State.RUNNING: "between_steps_s",
    State.RECOVERING: "recovering_s",
    State.PAUSING: "ending_s",
    State.STOPPING: "ending_s",
    State.PAUSED: "paused_s",
    State.HELD: "held_s",
    State.UNREACHABLE: "unreachable_s",
}
_STEP_BUCKETS: Final = (
    "productive_step_s",
    "degraded_step_s",
    "redone_step_s",
    "skipped_step_s",
    "data_wait_s",
    "checkpoint_stall_s",
)
BUCKETS: Final = (*_STEP_BUCKETS, "restoring_s", *dict.fromkeys(_BUCKET_OF.values()))


@dataclass(frozen=True, slots=True)
class Phase:
    """From `since` on the run was in `state`. Time in an end state is not wall time of the run."""

    since: datetime
    state: str


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """Steps as rank 0 measured them, in any order, each column as long as the others: a long run
    has millions. `stall_s` lies before a step, `data_s` within it.
    """

    generations: Ints
    steps: Ints
    ended_at: Floats
    """In seconds since the epoch."""
    step_times_s: Floats
    applied: Bools
    data_s: Floats
    stall_s: Floats


@dataclass(frozen=True, slots=True)
class Restoring:
    """A checkpoint was read back by rank 0, for `seconds` before `ended_at`."""

    ended_at: datetime
    seconds: float


def phases_of(created_at: datetime, history: Iterable[tuple[datetime, str]]) -> tuple[Phase, ...]:
    """Return the phases that (instant, kind of event) tell of, in order; kinds that name no state
    are passed over.
    """
    states = {f"run_{state}": state for state in State}
    found = [Phase(created_at, State.QUEUED)]
    found += [Phase(at, states[kind]) for at, kind in history if kind in states]
    return tuple(sorted(found, key=lambda phase: phase.since))


def goodput(
    phases: Sequence[Phase],
    steps: StepTimes,
    lineage: Lineage,
    *,
    until: datetime,
    degraded: Collection[int] = (),
    restored: Iterable[Restoring] = (),
) -> dict[str, float]:
    """Return bucket -> seconds, with `wall_s`, their sum, and `productive_ratio`.

    Args:
        phases: ascending; the first begins when the run was created.
        steps: of all generations.
        lineage: the surviving one.
        until: now, or when the run ended.
        degraded: generations that trained on less than was asked for.
        restored: of all generations, in any order.
    """
    if not phases:
        return {**dict.fromkeys(BUCKETS, 0.0), "wall_s": 0.0, "productive_ratio": 0.0}
    begin = phases[0].since
    spans = _spans(phases, begin, until)
    timed = _Timed.of(steps, restored, begin)
    taken_s, taken_of_spans_s = timed.taken(spans)
    spent = dict.fromkeys(BUCKETS, 0.0)
    for (first_s, last_s, state), overlap_s in zip(spans, taken_of_spans_s, strict=True):
        spent[_BUCKET_OF[state]] += (last_s - first_s) - overlap_s
    is_step = timed.places >= 0
    spent["restoring_s"] += float(taken_s[~is_step].sum())
    _share(spent, steps, timed.places[is_step], taken_s[is_step], lineage, degraded)
    wall_s = sum(last_s - first_s for first_s, last_s, _ in spans)
    productive = spent["productive_step_s"] / wall_s if wall_s > 0 else 0.0
    tidy = {name: max(0.0, seconds) for name, seconds in spent.items()}
    return {**tidy, "wall_s": wall_s, "productive_ratio": productive}


@dataclass(frozen=True, slots=True, eq=False)
class _Timed:
    """Stretches of time that do not overlap, ascending, in seconds since the run began."""

    starts: Floats
    ends: Floats
    places: Ints
    """Which step each belongs to; -1 is the reading of a checkpoint."""

    @classmethod
    def of(cls, steps: StepTimes, restored: Iterable[Restoring], begin: datetime) -> _Timed:
        reads = list(restored)
        ends = np.concatenate(
            [
                steps.ended_at - begin.timestamp(),
                [(each.ended_at - begin).total_seconds() for each in reads],
            ]
        )
        lengths = np.concatenate(
            [
                np.maximum(0.0, steps.step_times_s) + np.maximum(0.0, steps.stall_s),
                [max(0.0, each.seconds) for each in reads],
            ]
        )
        places = np.concatenate(
            [np.arange(len(steps.steps)), np.full(len(reads), -1, dtype=np.int64)]
        )
        order = np.argsort(ends, kind="stable")
        order = order[(lengths[order] > 0.0) & (ends[order] > 0.0)]
        ends = ends[order]
        # What ends later begins no earlier than where the one before it ended.
        starts = np.maximum(np.concatenate([[0.0], ends[:-1]])[: len(ends)], ends - lengths[order])
        apart = starts < ends
        return cls(starts[apart], ends[apart], places[order][apart])

    def taken(self, spans: Sequence[tuple[float, float, State]]) -> tuple[Floats, list[float]]:
        """Return how much of each stretch lies within spans, and how much of each span within
        stretches.
        """
        bounds = np.array([bound for first_s, last_s, _ in spans for bound in (first_s, last_s)])
        taken_s = _within(bounds, self.ends) - _within(bounds, self.starts)
        own = np.column_stack([self.starts, self.ends]).ravel()
        of_bounds = np.diff(_within(own, bounds))[::2]
        return taken_s, of_bounds.tolist()


def _within(bounds: Floats, instants: Floats) -> Floats:
    """Return how much time before each instant lies in the stretches with these bounds: first,
    last, first, last, ascending.
    """
    if len(bounds) == 0:
        return np.zeros(len(instants))
    lengths = np.diff(bounds, prepend=bounds[0])
    lengths[::2] = 0.0  # between the last of one and the first of the next
    found: Floats = np.interp(instants, bounds, np.cumsum(lengths))
    return found


def _spans(
    phases: Sequence[Phase], begin: datetime, until: datetime
) -> list[tuple[float, float, State]]:
    """Return (first, last) in seconds since `begin` and the state between them; end states are left
    out.
    """
    ends = [*(phase.since for phase in phases[1:]), until]
    return [
        ((phase.since - begin).total_seconds(), (end - begin).total_seconds(), State(phase.state))
        for phase, end in zip(phases, ends, strict=True)
        if phase.state not in TERMINAL and end > phase.since
    ]


def _share(
    spent: dict[str, float],
    steps: StepTimes,
    places: Ints,
    taken_s: Floats,
    lineage: Lineage,
    degraded: Collection[int],
) -> None:
    """Put what steps have taken into their buckets: first the stall and the wait for data, the rest
    by what became of them.
    """
    generations, numbers = steps.generations[places], steps.steps[places]
    survives, reduced = np.zeros(len(places), dtype=bool), np.zeros(len(places), dtype=bool)
    for generation in np.unique(generations).tolist():
        own = generations == generation
        survives[own] = numbers[own] <= lineage.get(generation, -1)
        reduced[own] = generation in degraded
    stall_s = np.minimum(np.maximum(0.0, steps.stall_s[places]), taken_s)
    data_s = np.minimum(np.maximum(0.0, steps.data_s[places]), taken_s - stall_s)
    rest_s, applied = taken_s - stall_s - data_s, steps.applied[places]
    for bucket, seconds, chosen in (
        ("redone_step_s", taken_s, ~survives),
        ("checkpoint_stall_s", stall_s, survives),
        ("data_wait_s", data_s, survives),
        ("skipped_step_s", rest_s, survives & ~applied),
        ("degraded_step_s", rest_s, survives & applied & reduced),
        ("productive_step_s", rest_s, survives & applied & ~reduced),
    ):
        spent[bucket] += float(seconds[chosen].sum())
