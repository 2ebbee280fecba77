"""Random ways to cut a tensor into boxes, as a hypothesis strategy."""

from __future__ import annotations

from hypothesis import strategies as st

from trainmaster.checkpoint.tiling import Box


@st.composite
def cuts(draw: st.DrawFn, shape: tuple[int, ...], max_parts: int = 8) -> list[Box]:
    """Boxes that tile a tensor of this shape: cut in two, again and again, empty parts included."""
    boxes = [Box((0,) * len(shape), shape)]
    if not shape:
        return boxes
    for _ in range(draw(st.integers(0, max_parts - 1))):
        box = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        axis = draw(st.integers(0, len(shape) - 1))
        at = draw(st.integers(0, box.shape[axis]))
        low, high = list(box.shape), list(box.shape)
        offset = list(box.offset)
        low[axis], high[axis] = at, box.shape[axis] - at
        offset[axis] += at
        boxes += [Box(box.offset, tuple(low)), Box(tuple(offset), tuple(high))]
    return draw(st.permutations(boxes))


SHAPES = st.lists(st.integers(0, 6), max_size=4).map(tuple)


@st.composite
def tilings(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Box]]:
    """A shape, and boxes that tile it."""
    shape = draw(SHAPES)
    return shape, draw(cuts(shape))
