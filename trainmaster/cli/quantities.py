"""How times, sizes and numbers are written for people. Pure."""

from __future__ import annotations

from datetime import datetime


def duration_text(seconds: float | None) -> str:
    """Return `8 s`, `3 min 20 s`, `2 h 5 min` or `4 d 3 h`; `-` when it is not known."""
    if seconds is None:
        return "-"
    whole = max(0, round(seconds))
    for unit_s, unit, sub_s, sub in ((86400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if whole >= unit_s:
            rest = whole % unit_s // sub_s
            return f"{whole // unit_s} {unit}" + (f" {rest} {sub}" if rest else "")
    if whole >= 60:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    return f"{whole} s"


def bytes_text(count: float | None) -> str:
    """Return `512 B`, `3.4 MiB`; `-` when it is not known."""
    if count is None:
        return "-"
    if count < 1024:
        return f"{count:.0f} B"
    units = ("KiB", "MiB", "GiB", "TiB")
    power = min(len(units), (int(count).bit_length() - 1) // 10)
    return f"{count / 1024**power:.1f} {units[power - 1]}"


def number_text(value: float | str | None, digits: int = 4) -> str:
    """Return a measured number; "NaN" and "Infinity" stay words, and None is `-`."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def instant(text: str | None) -> datetime | None:
    """Return the instant that RFC 3339 `text` names, or None."""
    return datetime.fromisoformat(text) if text else None


def clock_text(text: str | None) -> str:
    """Return an RFC 3339 instant down to the second, still in UTC; `-` when there is none."""
    at = instant(text)
    return f"{at:%Y-%m-%d %H:%M:%S}Z" if at else "-"
