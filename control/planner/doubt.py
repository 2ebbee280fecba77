"""How far the figures of a scenario may be off."""

from __future__ import annotations

from typing import NamedTuple

MOST_NODES = 128
"""Of a plan that is to hold up: in a sample, each node has figures of its own."""


class Doubt(NamedTuple):
    """How far figures may be off.

    Attributes:
        sigma: of the logarithm of what each node's passes take, and of each link's bandwidth and
            latency.
    """

    sigma: float
    samples: int
