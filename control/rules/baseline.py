"""A robust baseline: median and spread of the last good values, renewed every `STRIDE` values.

What was bad never enters it. A level that has been bad for as long as the baseline is long is the
new normal: the baseline is learned anew from it, or a rule would be blind for ever after one change
that stays.

Stretches without a bad value are computed at once (a sort of all their windows); the rest stride by
stride. Both come to the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from control.rules.frame import Bools, Floats

STRIDE = 8
SIGMAS_PER_MAD = 1.4826
FIRST_SPAN = 64
LONGEST_SPAN = 8192

Bounds = Callable[[Floats, Floats], tuple[Floats, Floats]]
"""(median, sigma) -> (least, greatest) value that is not bad, for several baselines at once."""


class Baseline:
    """The baseline of one series.

    Attributes:
        bar: the bound that was last compared with; NaN before there was any.
    """

    def __init__(self, window: int, min_samples: int, bounds: Bounds) -> None:
        self._window = window
        self._min_samples = min_samples
        self._bounds = bounds
        self._good: Floats = np.empty(0)
        self._outlying: list[float] = []
        self._position = 0
        self._low = -math.inf
        self._high = math.inf
        self._is_known = False
        self._span = FIRST_SPAN
        self.median = math.nan
        self.sigma = math.nan

    @property
    def bar(self) -> float:
        """The bound that values are compared with now; NaN while it is not known."""
        if not self._is_known:
            return math.nan
        return self._high if math.isfinite(self._high) else self._low

    def compare(self, tested: Floats, entering: Floats) -> tuple[Bools, Bools, Floats, Floats]:
        """Compare finite values with the baseline as it is at each, and let the good ones enter.

        Args:
            tested: what is compared.
            entering: what enters where `tested` is good; often the same.

        Returns:
            Where the baseline is known; where the value is bad; median and sigma at each.
        """
        count = len(tested)
        known, bad = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
        median, sigma = np.full(count, math.nan), np.full(count, math.nan)
        at = 0
        while at < count:
            aligned = self._position % STRIDE == 0
            room = (count - at) // STRIDE * STRIDE
            span = min(self._span, room)
            if aligned and span >= 4 * STRIDE and self._is_settled:
                done = self._at_once(tested[at : at + span], entering[at : at + span])
                if done is not None:
                    size = len(done[0])
                    known[at : at + size] = True
                    median[at : at + size], sigma[at : at + size] = done
                    at += size
                    continue
            size = min(STRIDE - self._position % STRIDE, count - at)
            here = slice(at, at + size)
            known[here], bad[here] = self._one(tested[here], entering[here])
            median[here], sigma[here] = self.median, self.sigma
            at += size
        return known, bad, median, sigma

    @property
    def _is_settled(self) -> bool:
        return len(self._good) == self._window and not self._outlying

    def _at_once(self, tested: Floats, entering: Floats) -> tuple[Floats, Floats] | None:
        """Take whole strides up to the first that holds a bad value; None if the very first
        does.
        """
        history = np.concatenate([self._good, entering])
        num_strides = len(tested) // STRIDE
        windows = np.lib.stride_tricks.sliding_window_view(history, self._window)[
            : num_strides * STRIDE : STRIDE
        ]
        median, sigma = spread(windows)
        low, high = self._bounds(median, sigma)
        strides = tested.reshape(num_strides, STRIDE)
        is_bad = ((strides > high[:, None]) | (strides < low[:, None])).any(axis=1)
        clean = int(is_bad.argmax()) if is_bad.any() else num_strides
        if clean == 0:
            self._span = FIRST_SPAN
            return None
        self._span = min(2 * self._span, LONGEST_SPAN) if clean == num_strides else FIRST_SPAN
        size = clean * STRIDE
        self._good = history[size : size + self._window].copy()
        self._position += size
        self._renew_from(median[clean - 1], sigma[clean - 1], low[clean - 1], high[clean - 1])
        return np.repeat(median[:clean], STRIDE), np.repeat(sigma[:clean], STRIDE)

    def _one(self, tested: Floats, entering: Floats) -> tuple[bool, Bools]:
        """Take at most one stride."""
        if self._position % STRIDE == 0 or not self._is_known:
            self._renew()
        self._position += len(tested)
        if not self._is_known:
            self._enter(entering)
            return False, np.zeros(len(tested), dtype=bool)
        bad = (tested > self._high) | (tested < self._low)
        if not bad.any():
            self._outlying.clear()
            self._enter(entering)
            return True, bad
        for value, is_bad in zip(entering.tolist(), bad.tolist(), strict=True):
            if is_bad:
                self._outlying.append(value)
            else:
                self._outlying.clear()
        self._enter(entering[~bad])
        if len(self._outlying) >= self._window:
            self._good = np.array(self._outlying[-self._window :])
            self._outlying.clear()
        return True, bad

    def _enter(self, values: Floats) -> None:
        if len(values):
            self._good = np.concatenate([self._good, values])[-self._window :]

    def _renew(self) -> None:
        if len(self._good) >= self._min_samples:
            median, sigma = spread(self._good[None, :])
            low, high = self._bounds(median, sigma)
            self._renew_from(median[0], sigma[0], low[0], high[0])

    def _renew_from(self, median: float, sigma: float, low: float, high: float) -> None:
        self._is_known = True
        self.median, self.sigma = float(median), float(sigma)
        self._low, self._high = float(low), float(high)


def spread(windows: Floats) -> tuple[Floats, Floats]:
    """Return the median of each row, and its sigma by the median distance from it."""
    ordered = np.sort(windows, axis=1)
    middle = _middle(ordered)
    distances = np.abs(ordered - middle[:, None])
    distances.sort(axis=1)
    return middle, SIGMAS_PER_MAD * _middle(distances)


def _middle(ordered: Floats) -> Floats:
    size = ordered.shape[1]
    # Halved before they are added: the sum of two finite values may not be.
    found: Floats = ordered[:, (size - 1) // 2] / 2 + ordered[:, size // 2] / 2
    return found
