"""Runs of a file, cut where its blocks end."""

from hypothesis import given
from hypothesis import strategies as st

from trainmaster.checkpoint.manifest import BLOCK_BYTES
from worker.checkpoint.filling import Wanted, split

NOWHERE = memoryview(b"")
LENGTHS = st.integers(1, 40) | st.integers(BLOCK_BYTES - 2, 2 * BLOCK_BYTES + 2)


def moved(segment: Wanted) -> list[tuple[int, int, int]]:
    """(byte of the file, byte of the memory, bytes) of each run."""
    return [
        (
            segment.place + number * segment.step,
            segment.target + number * segment.target_step,
            segment.length,
        )
        for number in range(segment.times)
    ]


def joined(runs: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Runs that touch on both sides as one."""
    found: list[tuple[int, int, int]] = []
    for place, target, length in runs:
        if found and (found[-1][0] + found[-1][2], found[-1][1] + found[-1][2]) == (place, target):
            place, target, length = *found[-1][:2], found.pop()[2] + length
        found.append((place, target, length))
    return found


@given(
    before=st.integers(0, 60),
    length=LENGTHS,
    times=st.integers(1, 9),
    gaps=st.tuples(LENGTHS, LENGTHS),
)
def test_runs_are_cut_where_blocks_end_and_nowhere_else(
    before: int, length: int, times: int, gaps: tuple[int, int]
) -> None:
    step, target_step = length + gaps[0] - 1, length + gaps[1] - 1
    place = 3 * BLOCK_BYTES - before
    whole = Wanted(place, NOWHERE, 5, length, times, step, target_step)
    parts = list(split([whole]))
    runs = [run for part in parts for run in moved(part)]
    assert joined(runs) == joined(moved(whole))
    assert runs == sorted(runs)
    for part in parts:
        first, last = moved(part)[0][0], sum(moved(part)[-1][::2]) - 1
        assert first // BLOCK_BYTES == last // BLOCK_BYTES
    touched = {run[0] // BLOCK_BYTES for run in runs}
    assert len(parts) <= 3 * len(touched), "most runs of a block stay together"
