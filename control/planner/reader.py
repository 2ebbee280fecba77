"""Reads values out of a mapping, and collects what is wrong with them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from trainmaster.errors import Problem

LEAST = 1e-30
"""The least figure that is not 0: quotients of such figures are neither 0 nor infinite."""

BEYOND_FLOAT = 1e300


class Reader:
    """Reads values out of a mapping, and collects what is wrong with them."""

    def __init__(self, value: Mapping[str, Any], where: str = "") -> None:
        self._value = value
        self._where = where
        self.problems: list[Problem] = []
        self.read: set[str] = set()

    def path(self, key: str) -> str:
        """Return where `key` stands."""
        return f"{self._where}.{key}" if self._where else key

    def wrong(self, key: str, message: str) -> None:
        """Note a problem."""
        self.problems.append(Problem(self.path(key), message))

    def number(
        self, key: str, default: float | None = None, *, zero: bool = False, below: float = 1e30
    ) -> float:
        """Return a finite number above 0 (or at least 0)."""
        self.read.add(key)
        value = self._value.get(key, default)
        if value is None:
            self.wrong(key, "is needed")
            return 1.0
        problem = number_problem(value, zero=zero, below=below)
        if problem is not None:
            self.wrong(key, problem)
            return 1.0
        return float(value)

    def whole(self, key: str, default: int | None = None, *, most: int = 1 << 40) -> int:
        """Return a whole number from 1 on."""
        value = self.number(key, default)
        if value != int(value) or not 1 <= value <= most:
            self.wrong(key, f"must be a whole number from 1 to {most}, not {value:g}")
            return 1
        return int(value)

    def choices(self, key: str, default: Sequence[Any]) -> list[Any]:
        """Return a list that is not empty, without doubles."""
        self.read.add(key)
        value = self._value.get(key, list(default))
        if not isinstance(value, list) or not value:
            self.wrong(key, "must be a list with at least one choice")
            return list(default)
        return [each for at, each in enumerate(value) if each not in value[:at]]


def number_problem(value: object, *, zero: bool = False, below: float = 1e30) -> str | None:
    """Return what is wrong with a figure, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"must be a number, not {value!r:.60}"
    if isinstance(value, float) and not math.isfinite(value):
        return f"must be a finite number, not {value}"
    shown = f"{value:g}" if abs(value) < BEYOND_FLOAT else f"{value!r:.60}"
    if value < 0 or (value == 0 and not zero):
        return f"must be {'at least' if zero else 'above'} 0, not {shown}"
    if value >= below:
        return f"must be below {below:g}, not {shown}"
    if 0 < value < LEAST:
        return f"must be {'0, or ' if zero else ''}at least {LEAST:g}, not {shown}"
    return None
