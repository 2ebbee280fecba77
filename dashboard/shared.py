"""Answers that are shared for a moment by all who ask the same."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Told = TypeVar("Told")


class _Kept(Generic[Told]):
    """One answer, or none yet, and since when."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.found: tuple[float, Told] | None = None


class Shared(Generic[Told]):
    """Keeps answers for `holds_s`, at most `most` of them. Who asks while another is about to find
    out waits for what that one finds; what raises is not kept.
    """

    def __init__(
        self, *, holds_s: float, most: int, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._holds_s = holds_s
        self._most = most
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, _Kept[Told]] = OrderedDict()

    def get(self, key: Hashable, find: Callable[[], Told]) -> Told:
        """Return what is kept under `key`, else what `find` returns."""
        with self._lock:
            kept = self._kept.pop(key, None) or _Kept()
            while self._kept and self._may_go(next(iter(self._kept.values()))):
                self._kept.popitem(last=False)
            self._kept[key] = kept
        with kept.lock:
            if kept.found is None or self._is_old(kept):
                kept.found = None
                kept.found = (self._monotonic(), find())
            return kept.found[1]

    def _may_go(self, oldest: _Kept[Told]) -> bool:
        return len(self._kept) >= self._most or self._is_old(oldest)

    def _is_old(self, kept: _Kept[Told]) -> bool:
        found = kept.found
        return found is not None and self._monotonic() - found[0] >= self._holds_s

    def clear(self) -> None:
        """Forget all answers."""
        with self._lock:
            self._kept.clear()
