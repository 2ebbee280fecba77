"""Sample rows: their values from what was measured, written one step late."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from trainmaster.metrics import STEP_METRIC_NAMES
from trainmaster.spool import Header, decode, is_missing
from worker.gradients.reduce import Synchronisation
from worker.guard import NO_ORDER, Status
from worker.reporting.spoolfile import SpoolFile
from worker.reporting.telemetry import (
    MEMORY_EVERY_S,
    Memory,
    MemoryMeter,
    StepRecord,
    Telemetry,
    node_memory,
    row_of,
    values_of,
)


def record(step: int = 1, **changes: object) -> StepRecord:
    status = Status(
        loss=2.5,
        weight=100.0,
        grad_norm=0.5,
        replica_norms=(1.0, 1.0),
        non_finite=(0, 0),
        spans_s=(0.8, 0.5),
        order=NO_ORDER,
    )
    values: dict[str, object] = {
        "step": step,
        "status": status,
        "lr": 1e-3,
        "step_time_s": 1.0,
        "compute_s": 0.6,
        "p2p_wait_s": 0.1,
        "optimizer_s": 0.01,
        "data_s": 0.02,
        "checkpoint_stall_s": 0.0,
        "checkpoint_failures": 0,
        "sync": Synchronisation(seconds=0.004, num_bytes=1000, moved_bytes=1000.0, hidden_s=0.006),
        "replica": 0,
        "num_replicas": 2,
    }
    return StepRecord(**(values | changes))  # type: ignore[arg-type]


def row(**changes: object) -> dict[str, float]:
    values = row_of(record(**changes), Memory(300, used=50, total=200))
    return dict(zip(STEP_METRIC_NAMES, values, strict=True))


def test_ratios_follow_from_seconds() -> None:
    seen = row()
    assert seen["bubble_ratio"] == pytest.approx(1 - 0.6 / 0.8)
    assert seen["utilization_ratio"] == pytest.approx(0.6)
    assert seen["memory_used_ratio"] == 0.25
    assert seen["latency_ms"] == pytest.approx(10)
    assert (seen["allreduce_s"], seen["allreduce_hidden_s"]) == (0.004, 0.006)
    assert seen["bandwidth_bytes_per_s"] == pytest.approx(2 * 1 / 2 * 1000 / 0.01)


def test_what_was_not_measured_is_missing_and_not_zero() -> None:
    seen = row(num_replicas=1, sync=Synchronisation(0.0, 0))
    assert is_missing(seen["latency_ms"])
    assert is_missing(seen["bandwidth_bytes_per_s"])
    assert seen["allreduce_s"] == 0


def test_a_rank_that_computes_longer_than_its_pipeline_s_span_has_no_negative_bubble() -> None:
    assert row(replica=1)["bubble_ratio"] == 0.0


def test_a_row_is_written_with_the_next_one_or_when_flushed(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    telemetry = Telemetry(
        SpoolFile(path, Header("r/1/0", STEP_METRIC_NAMES)), claimed_memory_bytes=1 << 40
    )

    def steps() -> list[int]:
        return [step for step, _, _ in decode(path.read_bytes(), offset=0, header=None).rows]

    telemetry.record(record(step=1))
    assert steps() == []
    telemetry.record(record(step=2))
    assert steps() == [1]
    telemetry.flush()
    telemetry.flush()
    assert steps() == [1, 2]


def test_values_stand_in_the_order_of_the_registry() -> None:
    assert tuple(values_of(record(), Memory(1, 2, 3))) == STEP_METRIC_NAMES


def test_a_row_is_of_its_own_step_and_end(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    telemetry = Telemetry(
        SpoolFile(path, Header("r/1/0", STEP_METRIC_NAMES)), claimed_memory_bytes=None
    )
    before = time.time()
    telemetry.record(record(step=1, lr=0.5))
    between = time.time()
    telemetry.record(record(step=2, lr=0.25))
    telemetry.flush()
    rows = decode(path.read_bytes(), offset=0, header=None).rows
    lr = STEP_METRIC_NAMES.index("lr")
    assert [(step, values[lr]) for step, _, values in rows] == [(1, 0.5), (2, 0.25)]
    assert before <= rows[0][1] <= between <= rows[1][1]


def test_a_node_knows_its_memory() -> None:
    told = b"MemTotal:  1000 kB\nMemFree:  10 kB\nMemAvailable:  400 kB\nBuffers:  5 kB\nCac"
    assert node_memory(told) == (600 * 1024, 1000 * 1024)


def test_memory_is_asked_for_once_a_second() -> None:
    meter = MemoryMeter(None)
    first = meter.at(100.0)
    assert 0 < first.used_by_rank < first.total
    assert 0 < first.used < first.total
    assert meter.at(100.0 + 0.9 * MEMORY_EVERY_S) is first
    assert meter.at(100.0 + MEMORY_EVERY_S) is not first
    meter.close()


def test_a_device_with_claimed_memory_is_used_by_its_rank() -> None:
    meter = MemoryMeter(1 << 40)
    memory = meter.read()
    assert (memory.used, memory.total) == (memory.used_by_rank, 1 << 40)
    meter.close()
