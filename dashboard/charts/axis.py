"""What charts of a run are drawn over: steps, time on the reader's clock, or tokens taken in. Pure.

A window is kept as steps, whatever the axis: they are what the server knows, and what an address
can name. What happened at a step stands where a reference series has that step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dashboard.charts.arrays import Packed, packed_doubles, packed_steps
from dashboard.charts.series import Series

AxisKind = Literal["step", "time", "tokens", "elapsed"]
KINDS: tuple[AxisKind, ...] = ("step", "time", "tokens")
"""For one run."""
SHARED: tuple[AxisKind, ...] = ("step", "elapsed", "tokens")
"""For several runs: the hours of each since its own first step, instead of a clock."""
_HOVER: Mapping[AxisKind, str] = {"step": ",d", "tokens": ".4s", "elapsed": ".4~g"}
_HOUR_S = 3600.0
Window = tuple[int, int]
"""First and last step, both included."""


def _nothing() -> Series:
    return Series.read({})


@dataclass(frozen=True)
class Axis:
    """How points and steps are placed from left to right.

    Attributes:
        kind: "elapsed" takes `at` as seconds since the first step (`since_first`).
        reference: points whose `at` and `tokens` are known, for what is known by its step alone.
        zone: in which times are told.
    """

    kind: AxisKind = "step"
    reference: Series = field(default_factory=_nothing)
    zone: tzinfo = UTC

    def packed(self, series: Series) -> Packed:
        """Return where the points of `series` stand, as Plotly reads it."""
        if self.kind == "step":
            return packed_steps(series.steps)
        return packed_doubles(self._placed(series))

    def packed_at(self, steps: NDArray[np.int64]) -> Packed:
        """Return where steps stand, as Plotly reads it."""
        return packed_steps(steps) if self.kind == "step" else packed_doubles(self._places(steps))

    def place(self, step: int, generation: int | None = None) -> float:
        """Return where a step stands: of `generation`, where the reference has points of it."""
        return float(self._places(np.asarray([step]), generation)[0])

    def _places(
        self, steps: NDArray[np.int64], generation: int | None = None
    ) -> NDArray[np.float64]:
        if self.kind == "step":
            return steps.astype(np.float64)
        known = self.reference
        if generation is not None and (known.generations == generation).any():
            known = known.where(known.generations == generation)
        places = self._placed(known)
        told = np.isfinite(places)
        if not told.any():
            return np.full(len(steps), np.nan)
        order = np.argsort(known.steps[told], kind="stable")
        return np.interp(steps, known.steps[told][order], places[told][order])

    def extent(self, steps: Window | None) -> tuple[float, float] | None:
        """Return from where to where the steps reach."""
        if steps is None:
            return None
        if self.kind == "step":
            return float(steps[0]), float(steps[1])
        places = self._placed(self.reference)
        inside = (self.reference.steps >= steps[0]) & (self.reference.steps <= steps[1])
        inside &= np.isfinite(places)
        if not inside.any():
            return None
        return float(places[inside].min()), float(places[inside].max())

    def steps_within(self, low: Any, high: Any) -> Window | None:
        """Return the steps that a window on this axis shows, at least; None where it is none.

        Args:
            low: as Plotly tells it: a number, or over time the reader's local time as text.
            high: the same.
        """
        try:
            first, last = sorted((self._read(low), self._read(high)))
        except (TypeError, ValueError):
            return None
        if self.kind == "step":
            return (max(1, int(np.ceil(first))), int(np.floor(last))) if last >= 1 else None
        places = self._placed(self.reference)
        known = np.isfinite(places)
        places, steps = places[known], self.reference.steps[known]
        before, after = steps[places <= first], steps[places >= last]
        inside = steps[(places >= first) & (places <= last)]
        if not len(inside) and not (len(before) and len(after)):
            return None
        low_step = int(before.max() if len(before) else inside.min())
        high_step = int(after.min() if len(after) else inside.max())
        return (max(1, low_step), high_step) if low_step <= high_step else None

    def layout(self, words: Mapping[str, str]) -> dict[str, Any]:
        """Return what Plotly is told of the axis."""
        told: dict[str, Any] = {"title": {"text": words[self.kind], "standoff": 4}}
        if self.kind == "time":
            return {**told, "type": "date", "hoverformat": "%Y-%m-%d %H:%M:%S"}
        return {**told, "hoverformat": _HOVER[self.kind]}

    def _placed(self, series: Series) -> NDArray[np.float64]:
        if self.kind == "step":
            return series.steps.astype(np.float64)
        if self.kind == "elapsed":
            return series.at / _HOUR_S
        return series.tokens if self.kind == "tokens" else local_ms(series.at, self.zone)

    def _read(self, place: Any) -> float:
        if isinstance(place, str) and self.kind == "time":
            told = datetime.fromisoformat(place.replace(" ", "T"))
            return told.replace(tzinfo=UTC).timestamp() * 1e3
        read = float(place)
        if not np.isfinite(read):
            raise ValueError(f"{place!r} is no place")
        return read


def since_first(of_run: Mapping[str, Series]) -> dict[str, Series]:
    """Return the series of one run with `at` in seconds since the earliest of their points."""
    known = [each.at[np.isfinite(each.at)] for each in of_run.values()]
    began = min((float(each.min()) for each in known if len(each)), default=0.0)
    return {name: replace(each, at=each.at - began) for name, each in of_run.items()}


def local_ms(at: NDArray[np.float64] | Sequence[float], zone: tzinfo) -> NDArray[np.float64]:
    """Return instants as what a clock in `zone` shows, in milliseconds: Plotly knows no zones.

    The offset is taken at the last instant, so that no hour is drawn twice when clocks change.
    """
    told = np.asarray(at, np.float64)
    known = told[np.isfinite(told)]
    if not len(known):
        return told
    offset = datetime.fromtimestamp(float(known.max()), zone).utcoffset()
    return (told + (offset.total_seconds() if offset is not None else 0.0)) * 1e3


def window_text(window: Window) -> str:
    """Return a window as an address names it."""
    return f"{window[0]}-{window[1]}"


def read_window(text: str | None) -> Window | None:
    """Return the window that an address names; None where it names none."""
    first, _, last = (text or "").partition("-")
    if not (first.isascii() and first.isdecimal() and last.isascii() and last.isdecimal()):
        return None
    low, high = int(first), int(last)
    return (max(1, low), high) if low <= high < 2**62 else None
