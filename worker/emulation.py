"""A slower device and slower links, for development, drills and honest benchmarks on small
machines.

Everything here is sleeping: numbers are not touched, so an emulated run has the bits of a real one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final, Literal

from worker.launch import Emulation, Link

Work = Literal["forward", "backward", "input", "weights", "loss"]
_LAYER_TIMES: Final[dict[Work, int]] = {
    "forward": 1,
    "backward": 2,
    "input": 1,
    "weights": 1,
    "loss": 0,
}
SLOW_FACTOR: Final = 3.0
"""How much longer compute takes under the drill `slow`."""


class Pace:
    """How much longer a piece of compute should have taken on the device that this rank plays."""

    def __init__(self, emulation: Emulation) -> None:
        self._speed = emulation.speed or 1.0
        self._layer_s = emulation.layer_time_s
        self.slow_until = 0.0
        """Instant on the monotonic clock until which the drill `slow` lasts."""

    def rest_s(self, work: Work, num_layers: int, elapsed_s: float, now: float) -> float:
        """Return the seconds to sleep after `elapsed_s` of real work. A backward takes twice a
        forward; where it is split, its halves take as long as one each.
        """
        if self._layer_s is not None:
            wanted = self._layer_s * num_layers * _LAYER_TIMES[work]
        else:
            wanted = elapsed_s / self._speed
        wanted = max(wanted, elapsed_s)
        if now < self.slow_until:
            wanted *= SLOW_FACTOR
        return wanted - elapsed_s

    def rest(self, work: Work, num_layers: int, elapsed_s: float) -> None:
        """Sleep what is missing."""
        seconds = self.rest_s(work, num_layers, elapsed_s, time.monotonic())
        if seconds > 0:
            time.sleep(seconds)


def message_s(link: Link | None, num_bytes: int) -> float:
    """Return the seconds that a message of `num_bytes` takes over an emulated link; a missing link
    costs nothing.
    """
    if link is None:
        return 0.0
    transfer = 0.0 if link.mbps is None else num_bytes * 8 / (link.mbps * 1e6)
    return link.latency_ms / 1e3 + transfer


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
