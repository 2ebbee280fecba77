"""Which batch a step consumes: pure arithmetic on skip ranges.

Batches are numbered from 1 in the order fixed by the seed. `skip` lists inclusive ranges of batch
numbers that nobody consumes; step s takes the s-th batch not in any of them. The data position of
a run is therefore just its step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate

Range = tuple[int, int]


def normalise(ranges: Iterable[Sequence[int]]) -> tuple[Range, ...]:
    """Return the same set of batches as sorted, disjoint, non-touching inclusive ranges."""
    merged: list[Range] = []
    for first, last in sorted((int(first), int(last)) for first, last in ranges):
        assert 1 <= first <= last, f"not a batch range: [{first}, {last}]"
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def batch_of_step(step: int, skip: Sequence[Range] = ()) -> int:
    """Return the number of the batch that `step` consumes under normalised `skip`."""
    batch = step
    for first, last in skip:
        if batch < first:
            break
        batch += last - first + 1
    return batch


def batches_of_steps(
    first_step: int, last_step: int, skip: Sequence[Range] = ()
) -> tuple[Range, ...]:
    """Return the batches that the inclusive range of steps consumes, as normalised ranges."""
    batches = (batch_of_step(step, skip) for step in range(first_step, last_step + 1))
    return normalise((batch, batch) for batch in batches)


def passes_of(batch: int, sync_every: int, ramp: int) -> range:
    """Return the passes, each over one global batch of the spec and numbered from 1, that make up
    `batch`.

    Args:
        sync_every: passes of a batch.
        ramp: over so many batches their number grows linearly, from 1 at least, to `sync_every`; 0
            for a whole batch from the start.
    """
    ends = _ends(sync_every, ramp)
    if batch > ramp:
        first = ends[-1] + (batch - ramp - 1) * sync_every
        return range(first + 1, first + 1 + sync_every)
    return range(ends[batch - 1] + 1, ends[batch] + 1)


@lru_cache(maxsize=8)
def _ends(sync_every: int, ramp: int) -> tuple[int, ...]:
    """Return the passes of all batches up to each on the ramp, 0 to begin with."""
    sizes = (-(-sync_every * batch // ramp) for batch in range(1, ramp + 1))
    return tuple(accumulate(sizes, initial=0))
