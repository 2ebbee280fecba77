"""A slower device and slower links, for development, drills and honest benchmarks on small
machines.

Everything here is sleeping: numbers are not touched, so an emulated run has the bits of a real one.

An emulated device keeps its own time. Its next action begins when it became free, or when the
message arrived that it waited for; so what the host spends between two actions, and by how much a
sleep is longer than asked for, does not add up along a step.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from random import Random
from threading import Thread
from typing import Any, Final, Literal

from trainmaster.emulation import Link
from worker.launch import Emulation

Work = Literal["forward", "backward", "input", "weights", "loss"]
_LAYER_TIMES: Final[dict[Work, int]] = {
    "forward": 1,
    "backward": 2,
    "input": 1,
    "weights": 1,
    "loss": 0,
}
Departure = tuple[float, Callable[[], None]]
"""The share of a piece of compute after which something leaves, and what sends it off."""

SLOW_FACTOR: Final = 3.0
"""How much longer compute takes under the drill `slow`."""
HOST_S: Final = 0.01
"""What the host may spend between two actions without the emulated device waiting for it."""
_PR_SET_TIMERSLACK: Final = 29


class Pace:
    """How much longer a piece of compute should have taken on the device that this rank plays."""

    def __init__(self, emulation: Emulation, *, rank: int = 0) -> None:
        self._speed = emulation.speed or 1.0
        self._layer_s = emulation.layer_time_s
        self._jitter = emulation.jitter
        self._drift = emulation.drift
        self._seed = f"{emulation.seed}/{rank}"
        self._drifted = 1.0
        self._draws = Random(self._seed)
        self._free = 0.0
        self.slow_until = 0.0
        """Instant on the monotonic clock until which the drill `slow` lasts."""
        self.plays = emulation.model_copy(update={"links": {}, "memory_bytes": None}) != (
            Emulation()
        )
        """Whether there is a device to play, and not the real one alone."""
        if self.plays or emulation.links:
            wake_on_time()

    def begin_step(self, step: int) -> None:
        """Be as fast as at `step`."""
        if self._drift is not None:
            self._drifted = self._drift.speed_at(step)
        if self._jitter:
            self._draws = Random(f"{self._seed}/{step}")

    def set_out(self) -> None:
        """Begin anew: what was done since the last action was no part of a pipeline's pass."""
        self._free = 0.0

    def woke(self, at: float) -> None:
        """What was waited for arrived at `at`: until then the device had nothing to do."""
        self._free = at

    def takes_s(self, work: Work, num_layers: int, elapsed_s: float, now: float) -> float:
        """Return the seconds that work takes which really took `elapsed_s`, never less than that,
        but for what takes no time on a device of fixed times: the loss. A backward takes twice a
        forward; where it is split, its halves take as long as one each.
        """
        if self._layer_s is not None and not _LAYER_TIMES[work]:
            return 0.0
        if self._layer_s is not None:
            wanted = self._layer_s * num_layers * _LAYER_TIMES[work]
        else:
            wanted = elapsed_s / self._speed
        wanted /= self._drifted
        if self._jitter:
            wanted *= 1.0 + self._jitter * self._draws.random()
        wanted = max(wanted, elapsed_s)
        return wanted * SLOW_FACTOR if now < self.slow_until else wanted

    def rest(
        self, work: Work, num_layers: int, started: float, leaving: Sequence[Departure] = ()
    ) -> tuple[float, float]:
        """Sleep what is missing of work that began at `started`; return when it began and ended on
        the emulated device. Instants are of the performance counter.

        Args:
            leaving: what the device sends off on its way, in order: no emulated device can send
                what it has not computed yet.
        """
        now = time.perf_counter()
        if not (self.plays or self.slow_until):
            return started, now
        began = started
        if self._free and 0.0 <= started - self._free < HOST_S:
            began = self._free
        takes_s = self.takes_s(work, num_layers, now - started, time.monotonic())
        if takes_s == 0.0:
            return began, began
        due = began + takes_s
        for share, send in leaving:
            _sleep_until(began + share * takes_s)
            send()
        _sleep_until(due)
        self._free = max(due, now)
        return began, self._free


def _sleep_until(due: float) -> None:
    left = due - time.perf_counter()
    if left > 0:
        time.sleep(left)


def wake_on_time() -> None:
    """Have sleeps of this thread, and of those that it starts, end when they should: Linux
    otherwise ends them some 50 microseconds late, to save wake-ups.
    """
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def transfer_s(link: Link, num_bytes: int) -> float:
    """Return the seconds for which a message occupies an emulated link."""
    return 0.0 if link.mbps is None else num_bytes * 8 / (link.mbps * 1e6)


def message_s(link: Link | None, num_bytes: int) -> float:
    """Return the seconds that a message of `num_bytes` takes over an emulated link; a missing link
    costs nothing.
    """
    return 0.0 if link is None else link.latency_ms / 1e3 + transfer_s(link, num_bytes)


def ring_s(links: Mapping[int, Link], num_ranks: int, num_bytes: int) -> float:
    """Return the seconds that a ring all-reduce of `num_bytes` takes over this rank's slowest link.

    Each rank sends 2 (n - 1) messages of 1/n of the bytes (Patarasuk and Yuan, 2009).
    """
    if num_ranks < 2:
        return 0.0
    each = num_bytes // num_ranks
    return (
        2 * (num_ranks - 1) * max((message_s(link, each) for link in links.values()), default=0.0)
    )


class Delivery:
    """A message on its way over an emulated link. Like a handle of torch's, it can be waited for;
    the sender has handed it over and is not kept waiting.
    """

    def __init__(self) -> None:
        self.failure: Exception | None = None

    def wait(self) -> bool:
        """Return at once.

        Raises:
            Exception: what went wrong, if it was not to be delivered.
        """
        if self.failure is not None:
            raise self.failure
        return True


class SlowLink:
    """One direction of an emulated link. It carries one message at a time, first come, first
    served; each arrives its latency after it has left the link. Sending blocks nobody.
    """

    def __init__(self, link: Link, *, seed: str = "") -> None:
        self._link = link
        self._draws = Random(seed)
        self._free = 0.0
        self._queue: SimpleQueue[tuple[float, Callable[[], Any], Delivery]] = SimpleQueue()
        self._carrier: Thread | None = None
        self._failure: Exception | None = None

    def due(self, num_bytes: int, now: float) -> float:
        """Return when a message that is handed over at `now` arrives, and take it on the link."""
        self._free = max(self._free, now) + transfer_s(self._link, num_bytes)
        latency_s = self._link.latency_ms / 1e3
        return self._free + latency_s * (1.0 + self._link.jitter * self._draws.random())

    def carry(self, send: Callable[[], Any], num_bytes: int) -> Delivery:
        """Call `send` when a message of `num_bytes` is due to arrive, and wait for what it returns,
        all in a thread of the link's own. What it sends must not change meanwhile.
        """
        delivery = Delivery()
        delivery.failure = self._failure
        if self._carrier is None:
            self._carrier = Thread(target=self._deliver, name="emulated-link", daemon=True)
            self._carrier.start()
        self._queue.put((self.due(num_bytes, time.perf_counter()), send, delivery))
        return delivery

    def _deliver(self) -> None:
        while True:
            due, send, delivery = self._queue.get()
            left = due - time.perf_counter()
            if left > 0:
                time.sleep(left)
            try:
                send().wait()
            except RuntimeError as error:  # torch's word for a peer that is gone
                self._failure = delivery.failure = error
