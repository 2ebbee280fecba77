"""Sums in one order for every layout: a tree over the micro-batches of a step.

Leaf n is the n-th micro-batch of the step. Two neighbouring blocks of one size, a power of two,
make a block of twice the size, and what is left in the end is added from left to right. So the
order of additions follows from the number of micro-batches alone (Demmel and Nguyen, 2015, call
such sums reproducible), whoever computes which of them and in whatever order they are done. A rank
adds up what blocks its own micro-batches make: one, where shares are equal powers of two.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch

from trainmaster.layout import leaves_of
from trainmaster.plan import Plan
from worker.parameters import Held
from worker.sums import Sums, add

T = TypeVar("T")
Block = tuple[int, int]
"""(first leaf, number of leaves): a power of two, which divides the first."""
Covers = tuple[tuple[Block, ...], ...]
"""For each replica the blocks that its leaves make, in order."""


def put(blocks: dict[Block, T], block: Block, value: T, merge: Callable[[T, T], T]) -> None:
    """Add a block, and make larger ones as long as its neighbour is there."""
    first, size = block
    while (neighbour := (first ^ size, size)) in blocks:
        value = merge(blocks.pop(neighbour), value)
        first, size = first & ~size, 2 * size
    blocks[first, size] = value


def cover(leaves: Iterable[int]) -> tuple[Block, ...]:
    """Return the blocks that some leaves make, in order."""
    blocks: dict[Block, int] = {}
    for leaf in leaves:
        put(blocks, (leaf, 1), 1, operator.add)
    return tuple(sorted(blocks))


def covers_of(plan: Plan, passes: int) -> Covers:
    """Return what blocks each replica's micro-batches make in a step of so many passes."""
    return tuple(cover(leaves_of(plan, replica, passes)) for replica in range(plan.replicas))


class OrderedSums(Sums):
    """As `Sums`, but a sum for each block of this rank's leaves."""

    def __init__(self, parameters: Sequence[Held]) -> None:
        super().__init__(parameters)
        self._blocks: dict[Block, torch.Tensor] = {}
        self._spare: list[torch.Tensor] = []

    def open(self) -> None:
        self.release()
        self._spare += self._blocks.values()
        self._blocks = {}
        super().open()

    def end(self, leaf: int) -> None:
        put(self._blocks, (leaf, 1), super().total(), self._merge)
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

    def packed(self, factor: float, most_blocks: int) -> torch.Tensor:
        """Return this rank's blocks times `factor`, one after the other, and zeros behind them."""
        own = self._in_order()
        packed = own[0].new_zeros(most_blocks, self.num_elements)
        for row, block in zip(packed, own, strict=False):
            torch.mul(block, factor, out=row)
        return packed

    def complete(self, received: torch.Tensor, covers: Covers) -> torch.Tensor:
        """Return the sums over all replicas.

        Args:
            received: the packed blocks of each replica.
        """
        blocks: dict[Block, torch.Tensor] = {}
        for rows, found in zip(received.unbind(), covers, strict=True):
            for row, block in zip(rows, found, strict=False):
                put(blocks, block, row, _merged)
        self._spare += self._blocks.values()
        self._blocks = blocks
        total = self.total()
        self._blocks = {}
        return total

    def _in_order(self) -> list[torch.Tensor]:
        return [self._blocks[block] for block in sorted(self._blocks)]

    def _merge(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        self._spare.append(other)
        return _merged(one, other)

    def _new(self) -> torch.Tensor:
        return self._spare.pop() if self._spare else super()._new()


def _merged(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    add(one, other)
    return one
