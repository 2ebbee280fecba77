"""Which bytes of which stored shard go where in a tensor that is cut another way. Pure arithmetic.

A stored shard and a wanted part are both boxes in the coordinates of the whole tensor. What they
have in common is a box again; in memory it is a series of runs, contiguous on both sides, and most
often all of one length and equally far apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from trainmaster.checkpoint.tiling import Box


@dataclass(frozen=True, slots=True)
class Fetch:
    """A part of a wanted box that lies in the stored shard of number `index`."""

    index: int
    part: Box


@dataclass(frozen=True, slots=True)
class Run:
    """`length` elements from element `source` of a shard to element `target` of a wanted box."""

    source: int
    target: int
    length: int


@dataclass(frozen=True, slots=True)
class Stripes:
    """As many runs as `times` says: the first from `source` to `target`, and each next one
    `source_step` and `target_step` elements further.
    """

    source: int
    target: int
    length: int
    times: int = 1
    source_step: int = 0
    target_step: int = 0


def plan(wanted: Box, stored: Sequence[Box]) -> list[Fetch]:
    """Return the parts that together make up `wanted`, in order of the shards.

    Assumes:
        `stored` tile the whole tensor, and `wanted` lies in it.
    """
    overlaps = ((index, wanted.overlap(box)) for index, box in enumerate(stored))
    return [Fetch(index, part) for index, part in overlaps if part is not None]


def runs(part: Box, source: Box, target: Box) -> Iterator[Run]:
    """Yield the runs of `part` in ascending order of place in both, as long as they can be.

    Args:
        part: lies in both `source` and `target`, which are stored in row-major order.
    """
    for each in stripes(part, source, target):
        for number in range(each.times):
            yield Run(
                each.source + number * each.source_step,
                each.target + number * each.target_step,
                each.length,
            )


def stripes(part: Box, source: Box, target: Box) -> Iterator[Stripes]:
    """Yield the same, those together that lie equally far apart: of a matrix all at once."""
    length = 1
    inner = len(part.shape)  # axes from here on are one run
    while inner > 0:
        inner -= 1
        length *= part.shape[inner]
        if not part.shape[inner] == source.shape[inner] == target.shape[inner]:
            break
    source_strides, target_strides = _strides(source.shape), _strides(target.shape)
    source_start = _place(part.offset, source.offset, source_strides)
    target_start = _place(part.offset, target.offset, target_strides)
    if inner == 0:
        yield Stripes(source_start, target_start, length)
        return
    across = inner - 1
    for index in product(*map(range, part.shape[:across])):
        yield Stripes(
            source_start + sum(i * s for i, s in zip(index, source_strides, strict=False)),
            target_start + sum(i * s for i, s in zip(index, target_strides, strict=False)),
            length,
            part.shape[across],
            source_strides[across],
            target_strides[across],
        )


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * shape[axis]
    return tuple(strides)


def _place(point: Sequence[int], origin: Sequence[int], strides: Sequence[int]) -> int:
    return sum((p - o) * s for p, o, s in zip(point, origin, strides, strict=True))
