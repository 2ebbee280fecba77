"""How large gradients are: squared norms by layer, and how many values are not finite."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from worker.model.parameters import Held
from worker.model.workload import layer_of


@dataclass(frozen=True, slots=True)
class Norms:
    """Squared 2-norms of gradients by layer, in float64, of what this rank speaks for; and how many
    values are not finite.
    """

    squares: dict[int, float]
    num_non_finite: int


Measured = tuple[list[tuple[int, float]], int]
"""(layer, square) of each parameter, and how many values are not finite."""


@dataclass(frozen=True, slots=True)
class OnDevice:
    """As `Norms`, left on the device for nobody to wait for.

    Attributes:
        squares: of each parameter, in float64; 0 where another rank speaks for it.
        layers: the layer of each.
        num_bad: how many of them hold a value that is not finite.
    """

    squares: torch.Tensor
    layers: torch.Tensor
    num_bad: torch.Tensor

    def add_to(self, by_layer: torch.Tensor) -> None:
        """Add the squares to a vector with a place for each layer."""
        by_layer.index_add_(0, self.layers, self.squares)


def measured(parameters: Sequence[Held], values: Sequence[torch.Tensor]) -> Measured:
    """Measure gradients, each parameter's square alone."""
    if not parameters:
        return [], 0
    # Squares of large float32 values would not fit into float32.
    norms = torch.stack(torch._foreach_norm(list(values), dtype=torch.float64)).tolist()
    squares = [
        (layer_of(one.name), norm * norm if one.counts else 0.0)
        for one, norm in zip(parameters, norms, strict=True)
    ]
    if all(map(math.isfinite, norms)):
        return squares, 0
    return squares, sum(int((~torch.isfinite(each)).sum()) for each in values)


def joined(several: Sequence[OnDevice]) -> OnDevice:
    """Return what several buckets have measured as one."""
    return OnDevice(
        torch.cat([each.squares for each in several]),
        torch.cat([each.layers for each in several]),
        torch.stack([each.num_bad for each in several]).sum(),
    )


def added(several: Iterable[Measured]) -> Norms:
    """Add up by layer, one parameter after the other: a layer's sum has the same bits however its
    parameters lie in buckets, and in every layout that holds it whole.
    """
    squares: dict[int, float] = {}
    num_non_finite = 0
    for found, bad in several:
        for layer, square in found:
            squares[layer] = squares.get(layer, 0.0) + square
        num_non_finite += bad
    return Norms(squares, num_non_finite)
