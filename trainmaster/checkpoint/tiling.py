"""Boxes within a tensor, and the rule that the shards of a tensor tile it. Pure geometry.

A tensor has no shape of its own in a manifest: its shape is the bounding box of its shards, and a
set of shards is whole only if they fill that box without a gap and without an overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class Box:
    """An axis-aligned part of a tensor. `offset` and `shape` have one entry per axis."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def end(self) -> tuple[int, ...]:
        """First index beyond the box on each axis."""
        return tuple(o + n for o, n in zip(self.offset, self.shape, strict=True))

    @property
    def volume(self) -> int:
        """Number of elements; 1 for a box without axes."""
        return prod(self.shape)

    def overlap(self, other: Box) -> Box | None:
        """Return the elements in both, or None if there are none."""
        low = tuple(map(max, self.offset, other.offset))
        high = tuple(map(min, self.end, other.end))
        if any(a >= b for a, b in zip(low, high, strict=True)):
            return None
        return Box(low, tuple(b - a for a, b in zip(low, high, strict=True)))


def whole_shape(boxes: Sequence[Box]) -> tuple[int, ...]:
    """Return the shape of the tensor of which `boxes` are the shards."""
    return tuple(map(max, zip(*(box.end for box in boxes), strict=True)))


def tiling_problem(boxes: Sequence[Box]) -> str | None:
    """Return why `boxes` do not tile a tensor, or None if they do."""
    if not boxes:
        return "has no shards"
    if len({len(box.offset) for box in boxes} | {len(box.shape) for box in boxes}) > 1:
        return "has shards with different numbers of axes"
    shape = whole_shape(boxes)
    for left, right in _overlapping(boxes):
        return (
            f"has shards that overlap: {list(left.shape)} at {list(left.offset)} and"
            f" {list(right.shape)} at {list(right.offset)}"
        )
    covered, needed = sum(box.volume for box in boxes), prod(shape)
    if covered != needed:
        return f"has shards that cover {covered} of the {needed} elements of {list(shape)}"
    return None


def _overlapping(boxes: Sequence[Box]) -> Iterator[tuple[Box, Box]]:
    """Yield pairs that overlap, by a sweep along the axis with most distinct offsets."""
    solid = [box for box in boxes if box.volume]
    if len(solid) < 2:
        return
    axes = len(solid[0].offset)
    if axes == 0:
        yield solid[0], solid[1]
        return
    axis = max(range(axes), key=lambda a: len({box.offset[a] for box in solid}))
    solid.sort(key=lambda box: box.offset[axis])
    for index, left in enumerate(solid):
        end = left.offset[axis] + left.shape[axis]
        for later in range(index + 1, len(solid)):
            right = solid[later]
            if right.offset[axis] >= end:
                break
            if left.overlap(right) is not None:
                yield left, right
