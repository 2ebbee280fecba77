"""How long a logging call keeps a training step, in the three lives that a step can lead. Standard
library only.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.spread import Durations

STEPS_PER_S = 100
WARM_UP_CALLS = 50
LEAST_CALLS = 500


def flat_out(call: Callable[[int], None], *, seconds: float) -> tuple[Durations, float]:
    """Call as fast as it goes, but `LEAST_CALLS` at least; return what the calls took, and how many
    seconds all of them took. Those that warm up come before.
    """
    taken = list[float]()
    for step in range(1, WARM_UP_CALLS + 1):
        call(step)
    began = time.perf_counter()
    while (gone := time.perf_counter() - began) < seconds or len(taken) < LEAST_CALLS:
        started = time.perf_counter()
        call(WARM_UP_CALLS + len(taken) + 1)
        taken.append(time.perf_counter() - started)
    return Durations.of(taken), gone


def paced(call: Callable[[int], None], *, seconds: float, computes: bool) -> Durations:
    """Call `STEPS_PER_S` times a second.

    Args:
        computes: whether the process computes between two calls, as a rank on CPU cores does, or
            sleeps, as one that waits for a device does: then the call finds the processor's caches
            cold, and the first thing that a process does costs more.
    """
    taken, due = list[float](), time.perf_counter()
    for step in range(1, WARM_UP_CALLS + max(1, int(seconds * STEPS_PER_S)) + 1):
        due += 1 / STEPS_PER_S
        _compute(due) if computes else time.sleep(max(0.0, due - time.perf_counter()))
        started = time.perf_counter()
        call(step)
        taken.append(time.perf_counter() - started)
    return Durations.of(taken[WARM_UP_CALLS:])


def _compute(until: float) -> None:
    numbers = list(range(1000))
    while time.perf_counter() < until:
        sum(numbers)
