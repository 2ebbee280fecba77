"""What an agent has done, counted as it goes, and how Prometheus reads it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from trainmaster.histogram import SHORT_S, Histogram


class Vitals:
    """Counts of one agent. Told by its loop, read by scrapes.

    Attributes:
        unsent_bytes: of spools, that the control plane has still to store, as of the last message.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._turn_s = Histogram(SHORT_S)
        self._failed_turns = 0
        self._answered = 0
        self._failed = 0
        self._heard_at = now()
        self.unsent_bytes = 0

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Count one turn of the loop, and whether it raised."""
        began, ended = self._now(), False
        try:
            yield
            ended = True
        finally:
            with self._lock:
                self._failed_turns += not ended
                self._turn_s.observe(self._now() - began)

    def answered(self) -> None:
        """Count a sync that the control plane has answered."""
        with self._lock:
            self._answered += 1
            self._heard_at = self._now()

    def failed(self) -> None:
        """Count a sync that it has not."""
        with self._lock:
            self._failed += 1

    def families(self, node: str) -> Iterator[Metric]:
        """Yield what Prometheus reads."""
        with self._lock:
            turns = HistogramMetricFamily(
                "trainmaster_agent_turn_duration_seconds",
                "One turn of the agent's loop.",
                labels=["node"],
            )
            turns.add_metric([node], self._turn_s.buckets(), self._turn_s.total)
            failed_turns = CounterMetricFamily(
                "trainmaster_agent_turns_failed",
                "Turns of the agent's loop that failed.",
                labels=["node"],
            )
            failed_turns.add_metric([node], self._failed_turns)
            syncs = CounterMetricFamily(
                "trainmaster_agent_syncs",
                "Syncs with the control plane; label `outcome`: answered, failed.",
                labels=["node", "outcome"],
            )
            syncs.add_metric([node, "answered"], self._answered)
            syncs.add_metric([node, "failed"], self._failed)
            silence = GaugeMetricFamily(
                "trainmaster_agent_silence_seconds",
                "Time since the control plane answered last.",
                labels=["node"],
            )
            silence.add_metric([node], self._now() - self._heard_at)
            unsent = GaugeMetricFamily(
                "trainmaster_agent_unsent_bytes",
                "Bytes of spools that the control plane has still to store.",
                labels=["node"],
            )
            unsent.add_metric([node], self.unsent_bytes)
        yield from (turns, failed_turns, syncs, silence, unsent)
