"""Sets of disjoint pipelines over kinds of nodes, before their layers are cut."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

Block = tuple[int, ...]
"""How many nodes of each kind one pipeline has."""


def work_estimate(counts: tuple[int, ...], num_layers: int, max_stages: int) -> float:
    """Return about how many stages of cuts an exhaustive search has to judge."""
    total = 0.0
    for block in blocks(counts, min(max_stages, num_layers)):
        size = sum(block)
        orders = math.factorial(size) / math.prod(math.factorial(each) for each in block)
        total += orders * math.comb(num_layers - 1, size - 1) * size
    return total


def blocks(counts: tuple[int, ...], most: int) -> Iterator[Block]:
    """Return each block of 1 to `most` nodes that the counts allow."""
    for block in product(*(range(count + 1) for count in counts)):
        if 1 <= sum(block) <= most:
            yield block


def groupings(counts: tuple[int, ...], most: int, replicas: int) -> list[tuple[Block, ...]]:
    """Return each set of blocks that the counts allow: fewest nodes first, then fewest blocks."""
    choices = list(blocks(counts, most))
    found: list[tuple[Block, ...]] = []

    def extend(chosen: tuple[Block, ...], left: tuple[int, ...], first: int) -> None:
        if chosen:
            found.append(chosen)
        if len(chosen) == replicas:
            return
        for position in range(first, len(choices)):
            block = choices[position]
            if all(need <= have for need, have in zip(block, left, strict=True)):
                rest = tuple(have - need for need, have in zip(block, left, strict=True))
                extend((*chosen, block), rest, position)

    extend((), counts, 0)
    found.sort(key=lambda each: (sum(map(sum, each)), len(each), max(map(sum, each)), each))
    return found


def orders(block: Block) -> Iterator[tuple[int, ...]]:
    """Return each distinct order of a block's nodes, as kinds."""
    left = list(block)
    size = sum(block)
    path: list[int] = []

    def extend() -> Iterator[tuple[int, ...]]:
        if len(path) == size:
            yield tuple(path)
            return
        for kind, count in enumerate(left):
            if count:
                left[kind] -= 1
                path.append(kind)
                yield from extend()
                path.pop()
                left[kind] += 1

    yield from extend()
