"""Sums of a few numbers over all ranks, in host memory: up a tree to rank 0, and down again.

Gloo's own all-reduce is a ring: each of n ranks is woken 2 (n - 1) times and more, one after the
other, which for a few numbers is all that it costs. In a tree whose ranks have up to seven
children at each of its levels, a sum over eight ranks is two messages deep. The order of additions
follows from the number of ranks alone, and all ranks are told the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch
import torch.distributed as dist

RADIX: Final = 8
"""A rank's parent is the rank without its lowest digit that is not 0, to this base."""


def add_up(values: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Put the sum of all ranks' `values` in their place; collective."""
    parent, children = place_of(dist.get_rank(group), dist.get_world_size(group))
    found = [torch.empty_like(values) for _ in children]
    _wait(
        dist.irecv(one, group=group, group_src=child)
        for one, child in zip(found, children, strict=True)
    )
    for one in found:
        values += one
    if parent is not None:
        dist.send(values, group=group, group_dst=parent)
        dist.recv(values, group=group, group_src=parent)
    # The largest subtree first: it takes longest.
    _wait(dist.isend(values, group=group, group_dst=child) for child in reversed(children))


def place_of(rank: int, size: int) -> tuple[int | None, list[int]]:
    """Return the parent of a rank, None for the root's, and its children in order."""
    distance = 1
    children: list[int] = []
    while distance < size and rank % (RADIX * distance) == 0:
        end = min(rank + RADIX * distance, size)
        children += range(rank + distance, end, distance)
        distance *= RADIX
    return (rank - rank % (RADIX * distance) if rank else None), children


def _wait(works: Iterable[dist.Work | None]) -> None:
    """Have all begin, then wait for all."""
    for work in list(works):
        assert work is not None, "this rank is in the group"
        work.wait()
