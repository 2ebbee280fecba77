"""What a scrape sees of ranks, from their spool frames."""

from __future__ import annotations

import math

from prometheus_client import CollectorRegistry

from trainmaster.histogram import Histogram
from trainmaster.spool import MISSING, Frames, Header
from worker.agent.exporter import LINGER_S, Exporter
from worker.agent.records import RankRecord

METRICS = ("loss", "applied", "tokens", "step_time_s", "latency_ms", "bandwidth_bytes_per_s")
NODE = {"node": "n1"}


def record(rank: int = 0, generation: int = 1) -> RankRecord:
    return RankRecord(
        run="r", generation=generation, rank=rank, slot=rank, replica=rank, stage=0, pid=1
    )


def labels(rank: int = 0, **more: str) -> dict[str, str]:
    return {"run": "r", "rank": str(rank), "stage": "0", "replica": str(rank), **NODE, **more}


def frames(*rows: tuple[float, ...], events: tuple[dict[str, object], ...] = ()) -> Frames:
    header = Header("r/1/0", METRICS)
    layout = header.row_struct()
    packed = [layout.pack(step, 0.0, *values) for step, values in enumerate(rows, start=1)]
    return Frames(0, header, list(events), b"".join(packed))


def shown(exporter: Exporter) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(exporter)
    return registry


def make(*, link: float | None = None) -> Exporter:
    return Exporter("n1", "cpu", link_bytes_per_s=link)


def test_counters_begin_at_zero_when_a_rank_starts():
    exporter = make()
    exporter.begin(record(), 0.0)
    registry = shown(exporter)
    for name in ("trainmaster_tokens_total", "trainmaster_failed_steps_total"):
        assert registry.get_sample_value(name, labels()) == 0.0
    count = "trainmaster_step_duration_seconds_count"
    assert registry.get_sample_value(count, labels()) == 0.0
    info = registry.get_sample_value("trainmaster_node_info", {**NODE, "device_kind": "cpu"})
    assert info == 1.0


def test_rows_become_gauges_counters_and_histograms():
    exporter = make(link=2e6)
    exporter.begin(record(), 0.0)
    exporter.take(
        "r/1/0",
        frames(
            (3.0, 1.0, 64.0, 0.3, 4.0, 1e6),
            (math.nan, 0.0, 64.0, 0.7, MISSING, MISSING),
        ),
    )
    value = shown(exporter).get_sample_value
    assert math.isnan(value("trainmaster_loss", labels()) or 0.0)
    assert value("trainmaster_step", labels()) == 2
    assert value("trainmaster_tokens_total", labels()) == 128
    assert value("trainmaster_failed_steps_total", labels()) == 1
    assert value("trainmaster_link_saturation_ratio", labels()) == 0.5
    steps = "trainmaster_step_duration_seconds"
    assert value(f"{steps}_sum", labels()) == 1.0
    assert value(f"{steps}_bucket", labels(le="0.5")) == 1
    assert value(f"{steps}_bucket", labels(le="+Inf")) == 2
    collective = "trainmaster_collective_duration_seconds"
    assert value(f"{collective}_count", labels(op="all_reduce")) == 1


def test_run_level_values_are_told_by_the_first_rank_alone():
    exporter = make()
    exporter.begin(record(1), 0.0)
    exporter.take("r/1/1", frames((3.0, 1.0, 64.0, 0.3, 4.0, 1e6)))
    value = shown(exporter).get_sample_value
    assert value("trainmaster_loss", labels(1)) is None
    assert value("trainmaster_tokens_total", labels(1)) is None
    assert value("trainmaster_link_bandwidth_bytes_per_second", labels(1)) == 1e6


def test_there_is_no_saturation_without_a_known_capacity():
    exporter = make()
    exporter.begin(record(), 0.0)
    exporter.take("r/1/0", frames((3.0, 1.0, 64.0, 0.3, 4.0, 1e6)))
    assert shown(exporter).get_sample_value("trainmaster_link_saturation_ratio", labels()) is None


def test_the_series_of_an_ended_rank_vanish_in_time():
    exporter = make()
    exporter.begin(record(), 0.0)
    exporter.end(record(), 100.0)
    exporter.end(record(), 105.0)
    exporter.sweep(100.0 + LINGER_S)
    assert shown(exporter).get_sample_value("trainmaster_step", labels()) == 0
    exporter.sweep(100.1 + LINGER_S)
    assert shown(exporter).get_sample_value("trainmaster_step", labels()) is None


def test_a_new_generation_takes_the_place_of_the_old_one():
    exporter = make()
    exporter.begin(record(), 0.0)
    exporter.take("r/1/0", frames((3.0, 1.0, 64.0, 0.3, 4.0, 1e6)))
    exporter.begin(record(generation=2), 0.0)
    exporter.end(record(), 0.0)
    exporter.sweep(99.0)
    assert shown(exporter).get_sample_value("trainmaster_step", labels()) == 0
    assert shown(exporter).get_sample_value("trainmaster_loss", labels()) is None


def test_a_rank_has_so_many_series_and_no_more_however_long_it_trains():
    exporter = make()
    row = (3.0, 1.0, 64.0, 0.3, 4.0, 1e6)

    def num_series() -> int:
        return sum(len(metric.samples) for metric in exporter.collect())

    nothing = num_series()
    exporter.begin(record(), 0.0)
    exporter.take("r/1/0", frames(row))
    one = num_series()
    assert one - nothing <= 60
    exporter.take("r/1/0", frames(*[row] * 500))
    assert num_series() == one
    exporter.begin(record(generation=2), 0.0)
    exporter.take("r/2/0", frames(row))
    assert num_series() == one
    exporter.begin(record(1), 0.0)
    exporter.take("r/1/1", frames(row))
    assert num_series() - one <= one - nothing


def test_a_m11_totals_never_decrease_when_a_rank_is_killed_and_begins_again():
    exporter = make()
    seen: list[tuple[float | None, ...]] = []

    def look() -> None:
        registry = shown(exporter)
        seen.append(
            tuple(
                registry.get_sample_value(name, labels())
                for name in (
                    "trainmaster_tokens_total",
                    "trainmaster_failed_steps_total",
                    "trainmaster_step_duration_seconds_count",
                )
            )
        )

    row = (3.0, 0.0, 64.0, 0.3, 4.0, 1e6)
    exporter.begin(record(), 0.0)
    exporter.take("r/1/0", frames(row, row))
    look()
    exporter.end(record(), 1.0)
    look()
    # One is followed at once, the other after its series had vanished.
    for generation in (2, 3):
        exporter.begin(record(generation=generation), 2.0)
        look()
        exporter.take(f"r/{generation}/0", frames(row))
        look()
        exporter.end(record(generation=generation), 3.0)
        exporter.sweep(99.0)
    assert seen == [(128, 2, 2), (128, 2, 2), (128, 2, 2), (192, 3, 3), (192, 3, 3), (256, 4, 4)]


def test_a_commit_makes_the_newest_checkpoint_young():
    exporter = make()
    exporter.begin(record(), 0.0)
    old = shown(exporter).get_sample_value("trainmaster_checkpoint_age_seconds", labels())
    event = {"kind": "checkpoint_committed", "at": "2100-01-01T00:00:00Z", "data": {}}
    exporter.take("r/1/0", frames(events=(event,)))
    young = shown(exporter).get_sample_value("trainmaster_checkpoint_age_seconds", labels())
    assert old is not None
    assert old > 1e9
    assert young == 0.0


def test_a_histogram_counts_what_is_no_number_nowhere():
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0, math.nan):
        histogram.observe(value)
    assert histogram.buckets() == [("1.0", 2), ("2.0", 3), ("+Inf", 4)]
    assert histogram.total == 12.0
