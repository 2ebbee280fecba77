"""A document that changes a little at a time: who has it as it was is told only what makes it what
it is. Pure, but for the names of versions.
"""

from __future__ import annotations

import json
from collections import deque
from typing import Any
from uuid import uuid4

Path = list[str | int]
Change = tuple[Path, int, Any]
"""Where something has changed, how much of the text there stays, and what follows it; -1 where
nothing stays, and what is there now instead."""

MOST_STEPS = 16
"""Versions from which it is told what has changed since."""
MOST_CHARS = 65_536
"""More is not worth it: then the document is told whole."""
_LEAST_KEPT = 64


def changes(before: Any, after: Any) -> list[Change]:
    """Return what makes `after` of `before`, both as JSON has them; 1 and true are taken for the
    same, as no place has the one and then the other.
    """
    found: list[Change] = []
    _compare([], before, after, found)
    return found


def _compare(path: Path, before: Any, after: Any, found: list[Change]) -> None:
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        for name, value in after.items():
            _compare([*path, name], before[name], value, found)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for place, value in enumerate(after):
            _compare([*path, place], before[place], value, found)
    elif isinstance(before, str) and isinstance(after, str) and before.isascii():
        kept = _kept(before, after)
        found.append((path, kept, after[kept:]) if kept >= _LEAST_KEPT else (path, -1, after))
    else:
        found.append((path, -1, after))


def _kept(before: str, after: str) -> int:
    """Return with how many characters both begin: packed points that have only grown."""
    low, high = 0, min(len(before), len(after))
    while low < high:
        middle = (low + high + 1) // 2
        if before[low:middle] == after[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def written(told: Any) -> str:
    """Return what is told as JSON without blanks."""
    return json.dumps(told, ensure_ascii=False, separators=(",", ":"))


class Told:
    """A document in its newest version, and what has changed since those before it."""

    def __init__(self) -> None:
        self.version = ""
        self._document: Any = None
        self._whole: str | None = None
        self._steps: deque[tuple[str, str]] = deque(maxlen=MOST_STEPS)

    def tell(self, document: Any) -> None:
        """Take what the document is now."""
        if self.version and document == self._document:
            return
        text = written(changes(self._document, document)) if self.version else ""
        if len(text) > MOST_CHARS:
            self._steps.clear()
        elif self.version:
            self._steps.append((self.version, text))
        self.version = uuid4().hex[:16]
        self._document, self._whole = document, None

    def whole(self) -> str:
        """Return the document as JSON, written once for all."""
        if self._whole is None:
            self._whole = written(self._document)
        return self._whole

    def since(self, version: str) -> str | None:
        """Return as JSON, in order, what has changed since `version`, step by step; None where that
        is not known, or is too much.
        """
        if version == self.version:
            return "[]"
        steps: list[str] = []
        for before, text in reversed(self._steps):
            steps.append(text)
            if before == version:
                return f"[{','.join(reversed(steps))}]" if _fit(steps) else None
        return None


def _fit(steps: list[str]) -> bool:
    return sum(map(len, steps)) <= MOST_CHARS
