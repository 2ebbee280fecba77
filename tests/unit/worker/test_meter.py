"""What a meter counts and records."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from worker.emulation import Pace
from worker.launch import Emulation
from worker.reporting.meter import Meter
from worker.reporting.pulsefile import PulseFile


def meter_of(folder: Path, **emulation: float) -> Meter:
    pace = Pace(Emulation.model_validate(emulation))
    return Meter(pace, PulseFile(folder / "rank.pulse"))


def test_nothing_is_recorded_of_a_step_that_nobody_wants(tmp_path: Path) -> None:
    meter = meter_of(tmp_path)
    meter.begin(1, 0.0, records=False)
    with meter.computing("forward", 0, 0, 1):
        pass
    assert meter.compute_s > 0
    assert meter.actions is None


def test_micro_batches_are_counted_on_through_the_passes_of_a_step(tmp_path: Path) -> None:
    meter = meter_of(tmp_path)
    meter.begin(1, time.perf_counter(), records=True)
    for _ in range(2):
        meter.begin_pass(4)
        with meter.computing("forward", 2, 3, 1):
            pass
    assert meter.actions is not None
    assert [(each.kind, each.stage, each.number) for each in meter.actions] == [
        ("forward", 2, 3),
        ("forward", 2, 7),
    ]


def test_what_lies_before_a_step_is_recorded_with_it(tmp_path: Path) -> None:
    meter = meter_of(tmp_path)
    meter.note_before("checkpoint", 10.0, 10.5)
    meter.begin(1, 10.0, records=True)
    assert meter.actions is not None
    [copied] = meter.actions
    assert (copied.kind, copied.start_ns, copied.end_ns) == ("checkpoint", 0, 500_000_000)
    meter.begin(2, 11.0, records=True)
    assert meter.actions == []


def test_a_body_that_fails_is_no_compute(tmp_path: Path) -> None:
    meter = meter_of(tmp_path)
    meter.begin(1, 0.0, records=True)
    with pytest.raises(ValueError, match="no"), meter.computing("forward", 0, 0, 1):
        raise ValueError("no")
    assert (meter.compute_s, meter.actions) == (0.0, [])


def test_messages_that_the_host_handles_between_two_actions_cost_an_emulated_device_nothing(
    tmp_path: Path,
) -> None:
    meter = meter_of(tmp_path, layer_time_s=0.001)
    meter.begin(1, 0.0, records=False)
    meter.waited(5.0, 5.0001)
    meter.computed(began=4.9, started=5.0002, ended=6.0)
    assert meter.p2p_wait_s == pytest.approx(0.0)
    meter.waited(6.0, 6.5)
    meter.computed(began=6.5, started=6.6, ended=7.0)
    assert meter.p2p_wait_s == pytest.approx(0.5), "a wait is one"
