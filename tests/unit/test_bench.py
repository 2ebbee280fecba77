"""What a bench says of what it measured."""

from __future__ import annotations

import sys
from itertools import islice

import pytest

from bench import measured, pace
from bench.ingest import report
from bench.peers.__main__ import PEERS
from bench.planner import scale
from bench.spread import Durations, Spread, merged
from trainmaster.metrics import STEP_METRIC_NAMES


def test_what_is_logged_is_what_a_rank_logs_and_the_same_each_time() -> None:
    once, again = (list(islice(measured.steps(seed=3), 5)) for _ in range(2))
    assert once == again
    assert {tuple(each) for each in once} == {STEP_METRIC_NAMES} == {measured.NAMES}


def test_a_spread_is_a_median_between_what_was_seen() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0, 3)
    durations = Durations.of([number / 1e6 for number in range(1, 201)])
    assert [round(each) for each in (durations.p50_us, durations.p99_us, durations.max_us)] == [
        100,
        199,
        200,
    ]
    assert merged([durations, durations])["p50_us"].repetitions == 2


def test_calls_are_counted_without_those_that_warm_up() -> None:
    steps: list[int] = []
    assert pace.paced(steps.append, seconds=0.02, computes=True).calls == 2
    assert len(steps) == pace.WARM_UP_CALLS + 2
    durations, taken = pace.flat_out(steps.append, seconds=0.01)
    assert durations.calls >= pace.LEAST_CALLS
    assert taken >= 0.01


def test_tables_say_what_was_left_out() -> None:
    one = Spread.of([1.0, 2.0, 4.0]).json()
    call = {"p50_us": one, "p99_us": one, "max_us": one}
    told = {
        "conditions": {
            "cores": 2, "cpu": "c", "memory_gib": 1, "kernel": "k", "python": "3",
            "load_average": [0.1], "load_average_after": [1], "versions": {"numpy": "2"},
        },
        "metrics": 20,
        "databases": {
            "sqlite": {
                "flushes": "WAL",
                "passages": {
                    "1": {
                        "points": 2000, "points_per_s": one, "control_us_per_point": one,
                        "agents_us_per_point": one, "bytes_per_point": one,
                    }
                },
            }
        },
        "blocking": {"flat_out": call, "computing": call},
        "peers": {
            "aim": {"absent": f"aim not installed for {sys.executable}"},
            "wandb": {
                "versions": {"wandb": "1"}, "points_per_s": one, "bytes_per_point": one,
                "flat_out": call, "computing": call, "idle": call,
            },
        },
    }  # fmt: skip
    page = report.markdown(told)
    assert "| sqlite | 1 | 2,000 | 2 (1 to 4) |" in page
    assert "aim not installed" in page
    assert "cannot be read" in page
    assert "wandb" in PEERS


def test_the_scale_on_paper_says_where_all_of_a_step_goes():
    found = list(scale.points((8, 16), grows=True))
    for each in found:
        assert each.useful + each.pipelines + each.sums == pytest.approx(1)
        assert 0.5 < each.useful < 1
        assert each.left(13_600.0) < each.left(50_700.0) < 1
    lines = scale.table(found)
    assert len([line for line in lines if line.startswith(("| 8 ", "| 16 "))]) == 2
    assert "8, 16 nodes" in lines[-1]
