"""What a parameter takes of memory with its gradient and the optimizer's state, by how replicas
share them (ZeRO) and where the optimizer works.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class States(NamedTuple):
    """Bytes per parameter.

    Attributes:
        held: by every replica.
        shared: divided by the number of replicas.
        whole: of the largest layer, while its parameters are gathered.
        on_host: in the host's memory, divided as `shared` where replicas share at all.
    """

    held: float
    shared: float = 0.0
    whole: float = 0.0
    on_host: float = 0.0

    def per_param(self, replicas: int) -> float:
        """Return the bytes per parameter of one of so many replicas."""
        return self.held + self.shared / replicas


Table = Mapping[tuple[int, bool], States]
"""(ZeRO level, whether the optimizer works in host memory) -> bytes."""

MIXED_ADAM: Table = {
    (0, False): States(16.0),
    (1, False): States(4.0, 12.0),
    (2, False): States(2.0, 14.0),
    (3, False): States(0.0, 16.0, 4.0),
    (0, True): States(4.0, on_host=16.0),
    (1, True): States(4.0, on_host=16.0),
    (2, True): States(2.0, 2.0, on_host=16.0),
    (3, True): States(0.0, 4.0, 4.0, on_host=16.0),
}
"""Two bytes of weights and of gradients, twelve of Adam's state (Rajbhandari et al., 2020)."""


def of_runtime(weight_bytes: float, sum_bytes: float, state_bytes: float) -> Table:
    """Return what the runtime holds: ZeRO 1 divides the optimizer's state; so does 2, whose sums
    are whole until they have been sent; 3 divides all and gathers one layer at a time.

    Args:
        weight_bytes: of a parameter.
        sum_bytes: of the sum of its gradients.
        state_bytes: of what the optimizer keeps for it.
    """
    both = weight_bytes + sum_bytes
    divided = States(both, state_bytes)
    on_host = States(both, on_host=weight_bytes + state_bytes)
    return {
        (0, False): States(both + state_bytes),
        (1, False): divided,
        (2, False): divided,
        (3, False): States(0.0, both + state_bytes, 2 * weight_bytes),
        (0, True): on_host,
        (1, True): on_host,
        (2, True): on_host,
        (3, True): States(0.0, sum_bytes, 2 * weight_bytes, weight_bytes + state_bytes),
    }
