"""Which of several control planes to speak to: the one that answered last, and for a fleet a first
choice that spreads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import monotonic as _monotonic
from zlib import crc32

HOME_AGAIN_S = 300.0
"""After so long at another than its first choice a caller tries that again; up to twice as long,
so that a fleet does not move at once.
"""

SEPARATOR = ","


def split(text: str) -> list[str]:
    """Return the addresses in a setting that may name several, each once, without white space."""
    return list(dict.fromkeys(part.strip() for part in text.split(SEPARATOR)))


class Rota:
    """The order in which addresses are tried. May be shared by threads.

    Args:
        addresses: at least one.
        name: of who asks; callers of different names begin at different addresses. Without one,
            the first address is the first choice.
        monotonic: seconds that pass.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        name: str = "",
        monotonic: Callable[[], float] = _monotonic,
    ) -> None:
        assert addresses, "there is nobody to ask"
        self._addresses = tuple(addresses)
        self._monotonic = monotonic
        self._lock = threading.Lock()
        number = crc32(name.encode()) if name else 0
        self._home = number % len(self._addresses)
        self._stay_s = HOME_AGAIN_S * (1 + number % 1000 / 1000)
        self._at = self._home
        self._since = monotonic()

    @property
    def several(self) -> bool:
        """Whether there is more than one."""
        return len(self._addresses) > 1

    def order(self) -> list[str]:
        """Return all addresses, the one to begin with first."""
        with self._lock:
            if self._at != self._home and self._monotonic() - self._since >= self._stay_s:
                self._at, self._since = self._home, self._monotonic()
            return [*self._addresses[self._at :], *self._addresses[: self._at]]

    def answered(self, address: str) -> None:
        """Begin with `address` from now on."""
        index = self._addresses.index(address)
        with self._lock:
            if index != self._at:
                self._at, self._since = index, self._monotonic()
