"""Where the wall time of a run went: every second is in exactly one bucket, and the buckets sum to
the wall time. Pure.

Two layers: what the run's state was, from its history, and on top of it the steps, each from its
start to its end by the ranks' clocks. A step's time is taken out of whatever state the run was
shown in meanwhile, since a state is noticed a little late.

| bucket | seconds |
|---|---|
| productive_step_s | in steps that count: on the surviving lineage, and applied |
| degraded_step_s | the same, while the run trains on less than was asked for |
| redone_step_s | in steps that were lost: a later generation began before them |
| skipped_step_s | in steps on the lineage whose update was skipped |
| data_wait_s, checkpoint_stall_s | waiting for data in steps, for checkpoints between them |
| idle_s | queued: waiting for nodes |
| starting_s, recovering_s | restoring and meeting; after an attempt that ended early |
| between_steps_s | running, but in no step that is known |
| paused_s, held_s, ending_s | by a person; ending is pausing or stopping |
| unreachable_s | out of contact, and in no step that is known |
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from control.lifecycle import TERMINAL, State
from control.lineage import Lineage

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
BUCKETS: Final = (*_STEP_BUCKETS, *dict.fromkeys(_BUCKET_OF.values()))


@dataclass(frozen=True, slots=True)
class Phase:
    """From `since` on the run was in `state`. Time in an end state is not wall time of the run."""

    since: datetime
    state: str


@dataclass(frozen=True, slots=True)
class StepTime:
    """One step as rank 0 measured it. `stall_s` lies before the step, `data_s` within it."""

    generation: int
    step: int
    ended_at: datetime
    step_time_s: float
    applied: bool = True
    data_s: float = 0.0
    stall_s: float = 0.0


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
    steps: Iterable[StepTime],
    lineage: Lineage,
    *,
    until: datetime,
    degraded: Collection[int] = (),
) -> dict[str, float]:
    """Return bucket -> seconds, with `wall_s`, their sum, and `productive_ratio`.

    Args:
        phases: ascending; the first begins when the run was created.
        steps: of all generations, in any order.
        lineage: the surviving one.
        until: now, or when the run ended.
        degraded: generations that trained on less than was asked for.
    """
    spent = dict.fromkeys(BUCKETS, 0.0)
    if not phases:
        return {**spent, "wall_s": 0.0, "productive_ratio": 0.0}
    begin = phases[0].since
    spans = _spans(phases, begin, until)
    for first_s, last_s, state in spans:
        spent[_BUCKET_OF[state]] += last_s - first_s
    wall_s = sum(spent.values())
    covered_s = 0.0
    position = 0
    for each in sorted(steps, key=lambda step: step.ended_at):
        end_s = (each.ended_at - begin).total_seconds()
        length_s = max(0.0, each.step_time_s) + max(0.0, each.stall_s)
        start_s = max(covered_s, end_s - length_s)
        if end_s <= start_s:
            continue
        covered_s = end_s
        taken_s = 0.0
        while position < len(spans) and spans[position][1] <= start_s:
            position += 1
        for first_s, last_s, state in spans[position:]:
            if first_s >= end_s:
                break
            overlap_s = min(end_s, last_s) - max(start_s, first_s)
            spent[_BUCKET_OF[state]] -= overlap_s
            taken_s += overlap_s
        _share(spent, each, taken_s, lineage, degraded)
    productive = spent["productive_step_s"] / wall_s if wall_s > 0 else 0.0
    tidy = {name: max(0.0, seconds) for name, seconds in spent.items()}
    return {**tidy, "wall_s": wall_s, "productive_ratio": productive}


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
    step: StepTime,
    taken_s: float,
    lineage: Lineage,
    degraded: Collection[int],
) -> None:
    """Put `taken_s` of a step into its buckets: first the stall and the wait for data, the rest by
    what became of it.
    """
    if step.step > lineage.get(step.generation, -1):
        spent["redone_step_s"] += taken_s
        return
    stall_s = min(max(0.0, step.stall_s), taken_s)
    data_s = min(max(0.0, step.data_s), taken_s - stall_s)
    spent["checkpoint_stall_s"] += stall_s
    spent["data_wait_s"] += data_s
    applied = "degraded_step_s" if step.generation in degraded else "productive_step_s"
    rest = applied if step.applied else "skipped_step_s"
    spent[rest] += taken_s - stall_s - data_s
