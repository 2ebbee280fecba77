"""Every rank tells every step, and the numbers agree with each other."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.distributed.ranks import Generation, plan_of, tiny_spec, trained
from trainmaster.metrics import STEP_METRICS
from trainmaster.spool import is_missing
from worker.launch import Emulation

STEPS = 5


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Generation:
    spec = tiny_spec(corpus, steps=STEPS)
    plan = plan_of(spec, replicas=2, stages=2)
    claimed = {0: Emulation(memory_bytes=10 << 30)}
    folder = tmp_path_factory.mktemp("pair")
    return trained(folder, spec, plan, checkpoint_every=2, emulation=claimed)


def test_each_rank_tells_each_step_once_in_its_own_stream(pair: Generation) -> None:
    for rank in range(4):
        frames = pair.frames(rank)
        assert frames.header is not None
        assert frames.header.stream == f"r1/1/{rank}"
        assert [step for step, _, _ in frames.rows] == list(range(1, STEPS + 1))
        ends = [at for _, at, _ in frames.rows]
        assert ends == sorted(ends)


def test_every_metric_is_measured_on_every_rank(pair: Generation) -> None:
    for rank in range(4):
        for row in pair.rows(rank).values():
            assert [name for name, value in row.items() if is_missing(value)] == []


def test_what_is_the_runs_is_the_same_on_every_rank(pair: Generation) -> None:
    for metric in (metric for metric in STEP_METRICS if metric.scope == "run"):
        assert len({tuple(pair.series(metric.name, rank)) for rank in range(4)}) == 1, metric.name


def test_the_parts_of_a_step_fit_into_it(pair: Generation) -> None:
    for rank in range(4):
        for row in pair.rows(rank).values():
            parts = ("compute_s", "p2p_wait_s", "allreduce_s", "optimizer_s", "data_s")
            assert all(row[part] >= 0 for part in parts)
            assert sum(row[part] for part in parts) <= row["step_time_s"] * 1.01
            assert 0 < row["utilization_ratio"] <= 1
            assert 0 <= row["bubble_ratio"] < 1


def test_bytes_and_bandwidth_follow_from_the_size_of_the_stage(pair: Generation) -> None:
    row = pair.rows(0)[3]
    assert row["allreduce_bytes"] > 0
    whole_s = row["allreduce_s"] + row["allreduce_hidden_s"]
    assert row["bandwidth_bytes_per_s"] == pytest.approx(row["allreduce_bytes"] / whole_s)
    assert row["latency_ms"] == pytest.approx(whole_s * 1e3)


def test_a_step_counts_its_tokens(pair: Generation) -> None:
    assert pair.series("tokens") == [16 * 32] * STEPS


def test_the_step_after_a_checkpoint_tells_how_long_it_waited(pair: Generation) -> None:
    stalls = pair.series("checkpoint_stall_s")
    assert [stall > 0 for stall in stalls] == [False, False, True, False, True]
    assert pair.rows()[3]["step_time_s"] > stalls[2]


def test_a_claimed_memory_is_what_the_ratio_is_of(pair: Generation) -> None:
    claimed = pair.rows(0)[1]
    assert claimed["memory_used_ratio"] == pytest.approx(claimed["memory_bytes"] / (10 << 30))
    assert 0 < pair.rows(1)[1]["memory_used_ratio"] < 1


def test_ready_ranks_tell_where_they_begin_and_finished_ones_where_they_end(
    pair: Generation,
) -> None:
    for rank in range(4):
        [ready] = pair.events("rank_ready", rank)
        assert ready["step"] == 0
        assert ready["pid"] == pair.processes[rank].pid
        [finished] = pair.events("rank_finished", rank)
        assert (finished["step"], finished["ordered"]) == (STEPS, False)
        assert ("weights_sha256" in finished) == (rank == 0)


def test_one_replica_has_no_gradient_synchronisation_to_measure(
    tmp_path: Path, corpus: Path
) -> None:
    spec = tiny_spec(corpus, steps=2)
    seen = trained(tmp_path, spec, plan_of(spec, stages=2))
    for row in seen.rows().values():
        assert is_missing(row["latency_ms"])
        assert is_missing(row["bandwidth_bytes_per_s"])
        assert row["allreduce_s"] == row["allreduce_bytes"] == 0
        assert math.isfinite(row["loss"])
