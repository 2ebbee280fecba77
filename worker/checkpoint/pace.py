"""Reading and sending no faster than asked, so that a disk or a link is left to those who train."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from trainmaster.errors import UnavailableError


class Pace:
    """Waits so that what is spent stays below a rate.

    Args:
        bytes_per_s: 0 for as fast as it goes.
        ends: set when the process ends: whoever waits is let go with an `UnavailableError`.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        bytes_per_s: float,
        ends: threading.Event,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._ends = ends
        self._clock = clock
        self._free_at = clock()

    def spend(self, num_bytes: int) -> None:
        """Return when `num_bytes` more may be read or sent.

        Raises:
            UnavailableError: the process ends.
        """
        if self._bytes_per_s:
            now = self._clock()
            pause_s = max(0.0, self._free_at - now)
            self._free_at = max(now, self._free_at) + num_bytes / self._bytes_per_s
        else:
            pause_s = 0.0
        if self._ends.wait(pause_s):
            raise UnavailableError("the agent ends: another try goes on", code="agent_ends")
