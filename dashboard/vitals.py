"""What this dashboard has done, counted as it goes, and how Prometheus reads it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from trainmaster.errors import TrainmasterError, UnavailableError
from trainmaster.histogram import SHORT_S, Histogram

OUTCOMES: Final = ("answered", "refused", "unavailable")


class Vitals(Collector):
    """Counts of one dashboard. Told by the threads of many viewers, read by scrapes."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._page_s = Histogram(SHORT_S)
        self._read_s = Histogram(SHORT_S)
        self._reads = dict.fromkeys(OUTCOMES, 0)

    @contextmanager
    def page(self) -> Iterator[None]:
        """Count one page that is drawn whole, however it ends."""
        began = self._now()
        try:
            yield
        finally:
            with self._lock:
                self._page_s.observe(self._now() - began)

    @contextmanager
    def read(self) -> Iterator[None]:
        """Count one question to the control plane."""
        began, outcome = self._now(), "answered"
        try:
            yield
        except UnavailableError:
            outcome = "unavailable"
            raise
        except TrainmasterError:
            outcome = "refused"
            raise
        finally:
            with self._lock:
                self._reads[outcome] += 1
                self._read_s.observe(self._now() - began)

    def collect(self) -> Iterator[Metric]:
        """Yield what Prometheus reads."""
        with self._lock:
            pages = HistogramMetricFamily(
                "trainmaster_dashboard_page_duration_seconds",
                "Drawing one page whole.",
            )
            pages.add_metric([], self._page_s.buckets(), self._page_s.total)
            reads = HistogramMetricFamily(
                "trainmaster_dashboard_read_duration_seconds",
                "One question of a page to the control plane.",
            )
            reads.add_metric([], self._read_s.buckets(), self._read_s.total)
            outcomes = CounterMetricFamily(
                "trainmaster_dashboard_reads",
                "Questions to the control plane; label `outcome`: answered, refused, unavailable.",
                labels=["outcome"],
            )
            for outcome, count in self._reads.items():
                outcomes.add_metric([outcome], count)
        yield from (pages, reads, outcomes)


VITALS: Final = Vitals()
"""Of this process."""
