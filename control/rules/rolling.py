"""The median of the last values, at each value."""

from __future__ import annotations

import numpy as np

from control.rules.frame import Floats

AT_ONCE = 1 << 16


class RollingMedian:
    """Medians of the last `window` values of one series."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._past: Floats = np.empty(0)

    def add(self, values: Floats) -> tuple[Floats, Floats]:
        """Return the medians that the new values complete, and for each the value that has just
        left its window; fewer than values while too few have been seen.
        """
        history = np.concatenate([self._past, values])
        self._past = history[-self._window :]
        # The first window is complete with `window` values, and the first value leaves after it.
        if len(history) <= self._window:
            return np.empty(0), np.empty(0)
        left = history[: -self._window]
        return self.medians(history)[1:], left

    def medians(self, history: Floats) -> Floats:
        """Return the median of each window of `history`."""
        # Halved, since a median adds the two values in the middle.
        windows = np.lib.stride_tricks.sliding_window_view(history / 2, self._window)
        pieces = [
            2 * np.median(windows[at : at + AT_ONCE], axis=1)
            for at in range(0, len(windows), AT_ONCE)
        ]
        return np.concatenate(pieces)
