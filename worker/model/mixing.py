"""Numbers that look random and follow from others."""

from __future__ import annotations

from typing import Final

_MASK_64: Final = (1 << 64) - 1


def mix(value: int) -> int:
    """Return a number of 64 bits that looks random: one turn of SplitMix64 (Steele, Lea and Flood,
    2014).
    """
    value = (value + 0x9E3779B97F4A7C15) & _MASK_64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return value ^ (value >> 31)
