"""Which batch a step consumes: pure arithmetic on skip ranges.

Batches are numbered from 1 in the order fixed by the seed. `skip` lists inclusive ranges of batch
numbers that nobody consumes; step s takes the s-th batch not in any of them. The data position of
a run is therefore just its step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
