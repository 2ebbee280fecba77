"""Sums in one order for every layout: a tree over the micro-batches of a step.

Leaf n is the n-th micro-batch of the step. Two neighbouring subtrees of one size, a power of two,
make a subtree of twice the size, and what is left in the end is added from left to right. So the
order of additions follows from the number of micro-batches alone (Demmel and Nguyen, 2015, call
such sums reproducible), whoever computes which of them and in whatever order they are done. A rank
adds up what subtrees its own micro-batches make: one, where shares are equal powers of two.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch

from trainmaster.layout import leaves_of
from trainmaster.plan import Plan
from worker.gradients.sums import Sums
from worker.model.parameters import Held

T = TypeVar("T")
Subtree = tuple[int, int]
"""(first leaf, number of leaves): a power of two, which divides the first."""
Covers = tuple[tuple[Subtree, ...], ...]
"""For each replica the subtrees that its leaves make, in order."""


def put(subtrees: dict[Subtree, T], subtree: Subtree, value: T, merge: Callable[[T, T], T]) -> None:
    """Add a subtree, and make larger ones as long as its neighbour is there."""
    first, size = subtree
    while (neighbour := (first ^ size, size)) in subtrees:
        value = merge(subtrees.pop(neighbour), value)
        first, size = first & ~size, 2 * size
    subtrees[first, size] = value


def cover(leaves: Iterable[int]) -> tuple[Subtree, ...]:
    """Return the subtrees that some leaves make, in order."""
    subtrees: dict[Subtree, int] = {}
    for leaf in leaves:
        put(subtrees, (leaf, 1), 1, operator.add)
    return tuple(sorted(subtrees))


def covers_of(plan: Plan, passes: int) -> Covers:
    """Return what subtrees each replica's micro-batches make in a step of so many passes."""
    return tuple(cover(leaves_of(plan, replica, passes)) for replica in range(plan.replicas))


class OrderedSums(Sums):
    """As `Sums`, but a sum for each subtree of this rank's leaves."""

    def __init__(self, parameters: Sequence[Held], dtype: torch.dtype = torch.float64) -> None:
        super().__init__(parameters, dtype)
        self._subtrees: dict[Subtree, torch.Tensor] = {}
        self._spare: list[torch.Tensor] = []

    def open(self) -> None:
        if self._flat is not None:
            self._spare.append(self._flat)
        self.release()
        self._spare += self._subtrees.values()
        self._subtrees = {}
        super().open()

    def end(self, leaf: int) -> None:
        put(self._subtrees, (leaf, 1), super().total(), self._merge)
        self.release()
        super().open()

    def total(self) -> torch.Tensor:
        """Return the sums of this rank's micro-batches, added from left to right."""
        first, *others = self._in_order()
        if not others:
            return first
        total = first.clone()
        for other in others:
            total.add_(other)
        return total

    def scale(self, factor: float) -> None:
        """Multiply all sums of this rank's micro-batches."""
        if factor != 1.0:
            for subtree in self._subtrees.values():
                subtree.mul_(factor)

    def packed(self, most_subtrees: int) -> torch.Tensor:
        """Return this rank's subtrees one after the other, then zeros."""
        own = self._in_order()
        if most_subtrees == 1:
            return own[0].view(1, -1)
        packed = own[0].new_zeros(most_subtrees, self.num_elements)
        for row, subtree in zip(packed, own, strict=False):
            row.copy_(subtree)
        return packed

    def complete(self, received: torch.Tensor, covers: Covers) -> torch.Tensor:
        """Return the sums over all replicas.

        Args:
            received: the packed subtrees of each replica.
        """
        subtrees: dict[Subtree, torch.Tensor] = {}
        for rows, found in zip(received.unbind(), covers, strict=True):
            for row, subtree in zip(rows, found, strict=False):
                put(subtrees, subtree, row, _merged)
        first, *others = (subtrees[subtree] for subtree in sorted(subtrees))
        total, *spare = self._subtrees.values()
        self._subtrees = {}
        self._spare += spare
        self._use(total)  # so that what was received can go
        total.copy_(first)
        for other in others:
            total.add_(other)
        return total

    def _in_order(self) -> list[torch.Tensor]:
        return [self._subtrees[subtree] for subtree in sorted(self._subtrees)]

    def _merge(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        self._spare.append(other)
        return _merged(one, other)

    def _new(self) -> torch.Tensor:
        return self._spare.pop() if self._spare else super()._new()


def _merged(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return one.add_(other)
