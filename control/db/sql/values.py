"""Values that SQL and JSON would lose or refuse: instants, non-finite numbers, and text with
NUL.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import DateTime, Dialect
from sqlalchemy.types import TypeDecorator

_LONGEST_S = 1e10
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class Instant(TypeDecorator[datetime]):
    """An aware UTC instant; SQLite, which knows no zones, holds it without one."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        assert value.tzinfo is not None, f"an instant without a zone: {value}"
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def number_word(value: float) -> float | str:
    """Return `value` as JSON can hold it: itself when finite, else "NaN", "Infinity" or
    "-Infinity".
    """
    if math.isfinite(value):
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def number_of(stored: Any) -> float | None:
    """Return the number that `number_word` wrote; None stays None."""
    return _WORDS[stored] if isinstance(stored, str) else stored


def plain(value: Any) -> Any:
    """Return `value` for a JSON column: non-finite numbers as words, instants as text, mappings and
    sequences copied.
    """
    if isinstance(value, float):
        return number_word(value)
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    if isinstance(value, datetime):
        return instant_text(value)
    return value


def instant_text(at: datetime) -> str:
    """Return an instant as RFC 3339 in UTC."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def whole(value: Any) -> int | None:
    """Return a number that was told if it is one that can be stored as an integer, else None."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and abs(value) < 2**62 else None


def seconds(value: Any) -> float:
    """Return a duration that was told; 0 when it is none."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < _LONGEST_S else 0.0


def storable(text: str) -> str:
    """Return `text` with what no database stores (NUL, halves of surrogate pairs) replaced by the
    replacement character.

    For facts, which are not refused: losing a letter is better than losing the fact.
    """
    if text.isascii() and "\0" not in text:
        return text
    return "".join(
        "\ufffd" if char == "\0" or "\ud800" <= char <= "\udfff" else char for char in text
    )


def storable_tree(value: Any) -> Any:
    """Return JSON data with each text, keys included, made storable and each number a word where it
    must be.
    """
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {storable(str(key)): storable_tree(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [storable_tree(each) for each in value]
    return number_word(value) if isinstance(value, float) else value
