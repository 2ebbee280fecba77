"""Numbers, sizes, times and durations as a person reads them, in the reader's language and zone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any

from dashboard.i18n import Translator

NOTHING = "–"
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def instant(text: str | None) -> datetime | None:
    """Return the instant that the API tells as RFC 3339 text, or None."""
    return None if text is None else datetime.fromisoformat(text)


def size(num_bytes: float | None) -> str:
    """Return a number of bytes with a binary unit."""
    if num_bytes is None:
        return NOTHING
    value, unit = float(num_bytes), 0
    while abs(value) >= 1024 and unit < len(_SIZES) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} {_SIZES[unit]}" if unit == 0 else f"{value:.1f} {_SIZES[unit]}"


def number(value: Any, digits: int = 4) -> str:
    """Return a measured value; non-finite ones, which travel as words, stay what they are."""
    if value is None:
        return NOTHING
    if isinstance(value, str):
        return value
    # What would be rounded to one digit more is told whole, too: 999.7, not 1e+03.
    if isinstance(value, int) or (math.isfinite(value) and abs(value) >= 10**digits - 0.5):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def ratio_of(done: float | None, total: float | None) -> float | None:
    """Return done / total within 0 to 1, or None if unknown."""
    if not total or done is None:
        return None
    return min(1.0, max(0.0, done / total))


@dataclass(frozen=True, slots=True)
class Formats:
    """Says times in one language and one zone."""

    t: Translator
    zone: tzinfo = UTC

    def duration(self, seconds: float | None) -> str:
        """Return a duration with at most two units."""
        if seconds is None:
            return NOTHING
        seconds = max(0.0, seconds)
        if seconds < 60:
            return self.t("time.s", s=int(seconds))
        minutes, rest = divmod(int(seconds), 60)
        if minutes < 60:
            return self.t("time.m_s", m=minutes, s=rest)
        hours, minutes = divmod(minutes, 60)
        if hours < 48:
            return self.t("time.h_m", h=hours, m=minutes)
        days, hours = divmod(hours, 24)
        return self.t("time.d_h", d=days, h=hours)

    def ago(self, at: datetime | None, now: datetime) -> str:
        """Return how long ago `at` was."""
        if at is None:
            return NOTHING
        return self.t("time.ago", duration=self.duration((now - at).total_seconds()))

    def clock(self, at: datetime | None, now: datetime) -> str:
        """Return `at` on the reader's clock; the day only if it is not today's."""
        if at is None:
            return NOTHING
        local, today = at.astimezone(self.zone), now.astimezone(self.zone)
        pattern = "%H:%M:%S" if local.date() == today.date() else "%Y-%m-%d %H:%M"
        return local.strftime(pattern)
