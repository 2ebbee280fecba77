"""The memory that an emulated device claims to have, held against what its rank takes."""

from __future__ import annotations

import resource

MIB = 1 << 20


class MemoryExceededError(MemoryError):
    """A rank has taken more memory than its emulated device has."""


class MemoryLimit:
    """Made as a rank begins: what its process held by then, libraries above all, a device would not
    hold.

    Args:
        limit_bytes: what the device is said to have; None where nothing is emulated.
    """

    def __init__(self, limit_bytes: int | None) -> None:
        self._limit_bytes = limit_bytes
        self._at_start = peak_bytes()

    def check(self, when: str, *, beside_bytes: int = 0) -> None:
        """Hold the most that this process has taken at any time so far against the limit.

        Args:
            when: what has been done last, such as "at step 3".
            beside_bytes: what the process holds in the host's memory, and not the device's.

        Raises:
            MemoryExceededError: it is more, with the numbers.
        """
        if self._limit_bytes is None:
            return
        taken = peak_bytes() - self._at_start - beside_bytes
        if taken > self._limit_bytes:
            raise MemoryExceededError(
                f"the emulated device has {self._limit_bytes / MIB:.1f} MiB (memory_bytes "
                f"{self._limit_bytes}), and the rank has taken {taken / MIB:.1f} MiB {when}: use "
                "a smaller micro_batch, more stages, or zero"
            )


def peak_bytes() -> int:
    """Return the most bytes of memory that this process has held at any time."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
