"""Prometheus `/metrics` for all ranks of a node, fed from their spools.

A rank's series begin at zero when it starts and are gone `LINGER_S` after it ended. A restarted
agent has no ranks of earlier lives, so no counter of a living process ever goes wrong.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from trainmaster.histogram import Histogram
from trainmaster.metrics import STEP_METRICS
from trainmaster.spool import Frames, last_measured, numbers
from worker.agent import device_metrics
from worker.agent.device_watch import Health
from worker.agent.records import RankRecord
from worker.agent.vitals import Vitals

LINGER_S = 5.0
"""How long the series of an ended rank stay, so that its last values are scraped."""
MAX_PAST = 1000
"""Ranks that have ended whose totals are kept for a next generation."""
STEP_BUCKETS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)
COLLECTIVE_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0)
STALL_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)

_LABELS = ["run", "rank", "stage", "replica", "node"]
_GAUGES = {metric.name: metric for metric in STEP_METRICS if metric.prometheus}
_RUN_SCOPED = {metric.name for metric in STEP_METRICS if metric.scope == "run"}


@dataclass(slots=True)
class _RankSeries:
    """What one rank has shown so far.

    Attributes:
        committed_at: when the newest checkpoint was committed, or else when the rank started.
        ended_mono: when it ended, on the agent's clock.
    """

    labels: list[str]
    is_first: bool
    committed_at: float
    step: int = 0
    gauges: dict[str, float] = field(default_factory=dict)
    tokens: float = 0.0
    failed_steps: int = 0
    step_time: Histogram = field(default_factory=lambda: Histogram(STEP_BUCKETS))
    all_reduce: Histogram = field(default_factory=lambda: Histogram(COLLECTIVE_BUCKETS))
    stall: Histogram = field(default_factory=lambda: Histogram(STALL_BUCKETS))
    ended_mono: float | None = None

    def go_on_from(self, older: _RankSeries) -> None:
        """Take over what an older generation of the rank has counted: totals never go back."""
        self.tokens, self.failed_steps = older.tokens, older.failed_steps
        self.step_time, self.all_reduce, self.stall = older.step_time, older.all_reduce, older.stall

    def take(self, frames: Frames) -> None:
        self.step = frames.last_step or self.step
        columns = dict(zip(frames.metrics, frames.columns()[2:], strict=False))
        for name in _GAUGES.keys() & columns.keys():
            value = last_measured(columns[name])
            if value is not None:
                self.gauges[name] = value

        def told(name: str) -> tuple[float, ...]:
            """What was not measured is a NaN here, and counts nowhere below."""
            return numbers("d", columns.get(name, b""))

        self.tokens += sum(max(0.0, value) for value in told("tokens"))
        self.failed_steps += told("applied").count(0.0)
        for value in told("step_time_s"):
            self.step_time.observe(value)
        for value in told("latency_ms"):
            self.all_reduce.observe(value / 1e3)
        for value in told("checkpoint_stall_s"):
            if value > 0.0:
                self.stall.observe(value)
        for event in frames.events:
            if event.get("kind") == "checkpoint_committed":
                self.committed_at = _seconds(str(event["at"]))


class Exporter(Collector):
    """Collects what the ranks of a node have shown. Fed by the agent, read by scrapes.

    Args:
        health: of the node's CUDA devices, filled by their watch.
        vitals: of the agent itself, filled by its loop.
        link_bytes_per_s: what the node's slowest link can carry, where its profile says so; without
            it there is no saturation to tell.
    """

    def __init__(
        self,
        node: str,
        device_kind: str,
        *,
        link_bytes_per_s: float | None,
        health: Health | None = None,
        vitals: Vitals | None = None,
    ) -> None:
        self._node = node
        self._device_kind = device_kind
        self._link_bytes_per_s = link_bytes_per_s
        self.health = health or Health({})
        self.vitals = vitals or Vitals()
        self._lock = threading.Lock()
        self._ranks: dict[tuple[str, int], tuple[str, _RankSeries]] = {}
        self._past: dict[tuple[str, int], _RankSeries] = {}

    def begin(self, record: RankRecord, at: float) -> None:
        """Show a rank that has just started, in place of the same rank of an older generation."""
        labels = [
            record.run,
            str(record.rank),
            str(record.stage),
            str(record.replica),
            self._node,
        ]
        series = _RankSeries(labels, record.rank == 0, at)
        key = (record.run, record.rank)
        with self._lock:
            older = self._ranks[key][1] if key in self._ranks else self._past.pop(key, None)
            if older is not None:
                series.go_on_from(older)
            self._ranks[key] = record.stream, series

    def take(self, stream: str, frames: Frames) -> None:
        """Take in new frames of a rank's spool; other streams are not shown."""
        with self._lock:
            for name, series in self._ranks.values():
                if name == stream:
                    series.take(frames)

    def end(self, record: RankRecord, now: float) -> None:
        """Have the series of a rank vanish soon: it has ended."""
        with self._lock:
            name, series = self._ranks.get((record.run, record.rank), ("", None))
            if name == record.stream and series is not None and series.ended_mono is None:
                series.ended_mono = now

    def sweep(self, now: float) -> None:
        """Remove the series of ranks that ended `LINGER_S` ago."""
        with self._lock:
            for key, (_, series) in list(self._ranks.items()):
                if series.ended_mono is not None and now - series.ended_mono > LINGER_S:
                    del self._ranks[key]
                    self._past[key] = series
            while len(self._past) > MAX_PAST:
                del self._past[next(iter(self._past))]

    def collect(self) -> Iterator[Metric]:
        """Yield every promised family, with or without series."""
        with self._lock:
            ranks = [series for _, series in self._ranks.values()]
            first = [series for series in ranks if series.is_first]
            yield self._node_info()
            yield self._living(ranks)
            yield from self.vitals.families(self._node)
            yield from device_metrics.families(self._node, self.health)
            for metric in _GAUGES.values():
                shown = first if metric.name in _RUN_SCOPED else ranks
                yield _gauge(
                    metric.prometheus,
                    metric.description,
                    ((s, s.gauges[metric.name]) for s in shown if metric.name in s.gauges),
                )
            yield _gauge(
                "trainmaster_step", "Last step that the rank ended.", ((s, s.step) for s in ranks)
            )
            yield self._saturation(ranks)
            yield _gauge(
                "trainmaster_checkpoint_age_seconds",
                "Time since the run's newest checkpoint, or since its start.",
                ((s, max(0.0, time.time() - s.committed_at)) for s in first),
            )
            yield _counter(
                "trainmaster_tokens",
                "Tokens or samples that steps consumed, redone ones included.",
                ((s, s.tokens) for s in first),
            )
            yield _counter(
                "trainmaster_failed_steps",
                "Steps attempted and not applied.",
                ((s, float(s.failed_steps)) for s in first),
            )
            yield _histogram(
                "trainmaster_step_duration_seconds",
                "Wall time of a step.",
                ((s, s.step_time) for s in ranks),
            )
            yield _histogram(
                "trainmaster_collective_duration_seconds",
                "Duration of a collective operation.",
                ((s, s.all_reduce) for s in ranks),
                op="all_reduce",
            )
            yield _histogram(
                "trainmaster_checkpoint_stall_seconds",
                "Time that a step waited for a checkpoint.",
                ((s, s.stall) for s in ranks),
            )

    def _node_info(self) -> Metric:
        family = GaugeMetricFamily(
            "trainmaster_node_info", "A node; its value is 1.", labels=["node", "device_kind"]
        )
        family.add_metric([self._node, self._device_kind], 1.0)
        return family

    def _living(self, ranks: list[_RankSeries]) -> Metric:
        family = GaugeMetricFamily(
            "trainmaster_agent_ranks", "Ranks that live on this node.", labels=["node"]
        )
        family.add_metric([self._node], sum(series.ended_mono is None for series in ranks))
        return family

    def _saturation(self, ranks: list[_RankSeries]) -> Metric:
        capacity = self._link_bytes_per_s
        return _gauge(
            "trainmaster_link_saturation_ratio",
            "Used share of what the link is known to carry; without a known capacity no series.",
            (
                (s, s.gauges["bandwidth_bytes_per_s"] / capacity)
                for s in ranks
                if capacity is not None and "bandwidth_bytes_per_s" in s.gauges
            ),
        )


def _gauge(name: str, text: str, values: Iterable[tuple[_RankSeries, float]]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=_LABELS)
    for series, value in values:
        family.add_metric(series.labels, value)
    return family


def _counter(name: str, text: str, values: Iterable[tuple[_RankSeries, float]]) -> Metric:
    family = CounterMetricFamily(name, text, labels=_LABELS)
    for series, value in values:
        family.add_metric(series.labels, value)
    return family


def _histogram(
    name: str, text: str, values: Iterable[tuple[_RankSeries, Histogram]], **labels: str
) -> Metric:
    family = HistogramMetricFamily(name, text, labels=[*_LABELS, *labels])
    for series, histogram in values:
        family.add_metric([*series.labels, *labels.values()], histogram.buckets(), histogram.total)
    return family


def _seconds(instant: str) -> float:
    return datetime.fromisoformat(instant).timestamp()
