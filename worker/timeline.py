"""Where a step's seconds go: compute, waiting for other stages. The one place that reaches into
torch's private pipelining functions.

Schedules post and await their messages through two module-level functions, `_batch_p2p` and
`_wait_batch_p2p`. They are replaced by ones that measure; `tests/distributed/test_timeline.py`
fails when torch renames or bypasses them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import torch.distributed as dist
from torch.distributed.pipelining import schedules

from trainmaster.pulse import Activity
from worker.emulation import Pace, Work
from worker.pulsefile import PulseFile

# Torch's own, taken before anybody replaced them; renamed or gone, this import fails.
_post: Final = schedules._batch_p2p
_await: Final = schedules._wait_batch_p2p

MessageCost = Callable[[int, int], float]
"""(global rank of the receiver, bytes) -> seconds that the message takes on an emulated link."""


class Meter:
    """Counts seconds of the current step, by what they were spent on."""

    def __init__(self, pace: Pace, pulse: PulseFile) -> None:
        self.pace = pace
        self._pulse = pulse
        self.reset()

    def reset(self) -> None:
        """Begin a new step."""
        self.compute_s = 0.0
        self.p2p_wait_s = 0.0

    @contextmanager
    def computing(self, work: Work, num_layers: int) -> Iterator[None]:
        """Count the body as compute of so many layers, stretched to the emulated device's pace."""
        started = time.perf_counter()
        with self._pulse.doing(Activity.COMPUTE):
            yield
            self.pace.rest(work, num_layers, time.perf_counter() - started)
        self.compute_s += time.perf_counter() - started

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the body as waiting for another stage."""
        started = time.perf_counter()
        with self._pulse.doing(Activity.WAIT):
            yield
        self.p2p_wait_s += time.perf_counter() - started


def measure_messages(meter: Meter, message_s: MessageCost) -> None:
    """Measure every message that torch's pipeline schedules post or await in this process, for its
    whole life.

    Sending additionally takes as long as `message_s` says. Called again, the new meter replaces the
    old one.
    """

    def measured_post(p2p_ops: list[dist.P2POp], desc: str | None = None) -> list[dist.Work]:
        if not p2p_ops:
            return []
        with meter.waiting():
            delay_s = sum(
                message_s(op.peer, op.tensor.numel() * op.tensor.element_size())
                for op in p2p_ops
                if op.op is dist.isend
            )
            if delay_s > 0:
                time.sleep(delay_s)
            return _post(p2p_ops, desc)

    def measured_await(work: list[dist.Work]) -> None:
        if work:
            with meter.waiting():
                _await(work)

    schedules._batch_p2p = measured_post
    schedules._wait_batch_p2p = measured_await
