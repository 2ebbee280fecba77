"""Every second of a run is in exactly one bucket."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.goodput import BUCKETS, Phase, Restoring, StepTimes, goodput, phases_of
from control.lifecycle import State
from control.lineage import ENDLESS
from tests.fakes.snapshots import NOW

ALL = {1: ENDLESS}


def after(seconds: float):
    return NOW + timedelta(seconds=seconds)


def phases(*told: tuple[float, str]) -> tuple[Phase, ...]:
    return phases_of(NOW, [(after(seconds), f"run_{state}") for seconds, state in told])


@dataclass(frozen=True)
class Step:
    generation: int
    step: int
    ended_at: datetime
    step_time_s: float
    applied: bool = True
    data_s: float = 0.0
    stall_s: float = 0.0


def step(number: int, end_s: float, length_s: float = 1.0, generation: int = 1, **changes):
    return Step(generation, number, after(end_s), length_s, **changes)


def columns(steps: list[Step]) -> StepTimes:
    return StepTimes(
        generations=np.array([each.generation for each in steps], dtype=np.int64),
        steps=np.array([each.step for each in steps], dtype=np.int64),
        ended_at=np.array([each.ended_at.timestamp() for each in steps], dtype=np.float64),
        step_times_s=np.array([each.step_time_s for each in steps], dtype=np.float64),
        applied=np.array([each.applied for each in steps], dtype=bool),
        data_s=np.array([each.data_s for each in steps], dtype=np.float64),
        stall_s=np.array([each.stall_s for each in steps], dtype=np.float64),
    )


def test_time_before_and_between_steps_goes_to_the_state():
    found = goodput(
        phases((5, "starting"), (8, "running"), (20, "succeeded")),
        columns([step(1, 9), step(2, 10), step(3, 12)]),
        ALL,
        until=after(100),
    )
    assert found["idle_s"] == 5
    assert found["starting_s"] == 3
    assert found["productive_step_s"] == 3
    assert found["between_steps_s"] == 9
    assert found["wall_s"] == 20
    assert found["productive_ratio"] == pytest.approx(0.15)


def test_steps_that_a_later_generation_does_again_are_redone():
    told = phases((0, "running"), (4, "recovering"), (5, "running"))
    found = goodput(
        told,
        columns([step(1, 1), step(2, 2), step(3, 3), step(2, 6, generation=2)]),
        {2: ENDLESS, 1: 1},
        until=after(6),
    )
    assert (found["productive_step_s"], found["redone_step_s"]) == (2, 2)
    assert (found["recovering_s"], found["between_steps_s"]) == (1, 1)


def test_waits_and_skipped_updates_are_told_apart():
    found = goodput(
        phases((0, "running")),
        columns([step(1, 2, 1.0, data_s=0.25, stall_s=1.0), step(2, 3, applied=False)]),
        ALL,
        until=after(3),
    )
    assert found["checkpoint_stall_s"] == 1
    assert found["data_wait_s"] == 0.25
    assert found["productive_step_s"] == 0.75
    assert found["skipped_step_s"] == 1
    assert found["between_steps_s"] == 0


def test_reading_a_checkpoint_back_is_told_apart_from_starting():
    found = goodput(
        phases((0, "starting"), (2, "running"), (4, "recovering"), (5, "starting"), (9, "running")),
        columns([step(1, 3), step(2, 4), step(3, 11, generation=2)]),
        {2: ENDLESS, 1: 2},
        until=after(11),
        restored=[Restoring(after(8.5), 3.0)],
    )
    assert (found["starting_s"], found["restoring_s"]) == (3, 3)
    assert (found["recovering_s"], found["productive_step_s"], found["wall_s"]) == (1, 3, 11)


def test_rest_and_end_are_told_apart():
    found = goodput(
        phases((0, "running"), (2, "paused"), (7, "queued"), (8, "stopped")),
        columns([]),
        ALL,
        until=after(50),
    )
    assert (found["paused_s"], found["idle_s"], found["wall_s"]) == (5, 1, 8)


def test_events_that_name_no_state_are_passed_over():
    told = phases_of(NOW, [(after(1), "run_submitted"), (after(2), "run_running")])
    assert [each.state for each in told] == ["queued", "running"]


@given(
    st.lists(st.tuples(st.floats(0, 50), st.sampled_from(State)), max_size=8),
    # A rank's clock may be minutes ahead or behind, and be set while it trains.
    st.lists(st.tuples(st.floats(-400, 400), st.floats(0, 5), st.floats(0, 2)), max_size=12),
    st.lists(st.tuples(st.floats(-400, 400), st.floats(-1, 90)), max_size=4),
)
def test_the_buckets_sum_to_the_wall(told, made, read):
    history = [(after(seconds), f"run_{state}") for seconds, state in sorted(told)]
    steps = [
        step(number, end_s, length_s, stall_s=stall_s, data_s=stall_s)
        for number, (end_s, length_s, stall_s) in enumerate(made, 1)
    ]
    restored = [Restoring(after(end_s), seconds) for end_s, seconds in read]
    found = goodput(
        phases_of(NOW, history), columns(steps), {1: 6}, until=after(60), restored=restored
    )
    assert sum(found[name] for name in BUCKETS) == pytest.approx(found["wall_s"], abs=1e-6)
    assert all(found[name] >= 0 for name in BUCKETS)
    assert 0 <= found["productive_ratio"] <= 1 + 1e-9
