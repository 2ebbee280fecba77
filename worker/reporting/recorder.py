"""Which steps are recorded, and how their timelines get into the spool."""

from __future__ import annotations

import time

from trainmaster.timeline import Timeline, encode
from worker.reporting.clock import Clocks
from worker.reporting.meter import Meter
from worker.reporting.spoolfile import SpoolFile


class Recorder:
    """Keeps the timelines of one rank. All ranks record the same steps.

    Args:
        every: each so many steps one is recorded; 0 for none.
    """

    def __init__(self, spool: SpoolFile, meter: Meter, clocks: Clocks, *, every: int) -> None:
        self._spool = spool
        self._meter = meter
        self._clocks = clocks
        self._every = every
        self._asked: int | None = None
        clocks.measure()

    def ask(self, step: int) -> None:
        """Have `step` recorded, too."""
        self._asked = step

    def wants(self, step: int) -> bool:
        """Return whether `step` is recorded."""
        return step == self._asked or (self._every > 0 and step % self._every == 0)

    def keep(self, step: int, step_time_s: float) -> None:
        """Write the timeline of `step`, which has just ended; collective over all ranks, whose
        clocks are compared.
        """
        meter = self._meter
        assert meter.actions is not None, "the step was recorded"
        since_s = time.perf_counter() - meter.origin
        timeline = Timeline(
            step=step,
            at=time.time() - since_s,
            origin_s=meter.origin,
            length_ns=round(step_time_s * 1e9),
            clock=self._clocks.measure(),
            actions=tuple(meter.actions),
            dropped=meter.dropped,
        )
        self._spool.timeline(encode(timeline))
