"""How long to wait before a part that died is started again. Pure."""

from __future__ import annotations

FIRST_S = 1.0
LONGEST_S = 30.0
GOOD_STRETCH_S = 60.0


class Backoff:
    """Delays for one part: doubling from 1 s to 30 s, from the start again after a good minute."""

    def __init__(self) -> None:
        self._next_s = FIRST_S

    def delay_s(self, ran_s: float) -> float:
        """Return how long to wait now that the part has died after running for `ran_s`."""
        if ran_s >= GOOD_STRETCH_S:
            self._next_s = FIRST_S
        delay, self._next_s = self._next_s, min(LONGEST_S, 2 * self._next_s)
        return delay
