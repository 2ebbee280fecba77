"""Bytes of a file into the memory they are for: block by block, several threads at once.

A block that is wanted nearly whole is read straight into that memory and hashed there, so that no
byte is moved twice; of one that is wanted in small parts, these are copied out, those that lie
equally far apart all at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

import numpy as np

from trainmaster.checkpoint.manifest import BLOCK_BYTES
from trainmaster.checkpoint.verified import ReadInto, VerifiedFile

MAX_RUNS: Final = 256
MAX_SPARE_BYTES: Final = BLOCK_BYTES // 4
"""Of a block that is read straight into place: what nobody wants of it, such as a header."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Runs of `length` bytes of a file, and where they go: the first from byte `place` to byte
    `target` of `memory`, each next one `step` and `target_step` bytes further.

    Attributes:
        times: how many runs.
        step: no less than `length`.
    """

    place: int
    memory: memoryview
    target: int
    length: int
    times: int = 1
    step: int = 0
    target_step: int = 0

    @property
    def num_bytes(self) -> int:
        """Of all runs together."""
        return self.times * self.length

    def after(self, times: int) -> Wanted:
        """Return what is left after so many runs."""
        return replace(
            self,
            place=self.place + times * self.step,
            target=self.target + times * self.target_step,
            times=self.times - times,
        )

    def runs(self) -> Iterator[tuple[int, memoryview]]:
        """Yield the runs: (byte of the file, the memory that what begins there is for)."""
        for number in range(self.times):
            start = self.target + number * self.target_step
            yield self.place + number * self.step, self.memory[start : start + self.length]


def fill(
    file: VerifiedFile,
    wanted: Iterable[Wanted],
    read_into: ReadInto,
    threads: Executor,
    *,
    ahead: int,
) -> int:
    """Fill what is wanted, given in order of its place in the file, with verified bytes; return the
    number of bytes read for it. At most `ahead` blocks are under way.

    Raises:
        IntegrityError: bytes are not what the manifest says. What is in the memory then is not to
            be used.
        UnavailableError: they cannot be read now.
    """
    under_way: deque[Future[int]] = deque()
    read_bytes = 0
    for index, group in groupby(split(wanted), key=lambda each: each.place // BLOCK_BYTES):
        if (kept := file.kept(index)) is not None:
            _copy_out(memoryview(kept), index, group)
            continue
        if len(under_way) == ahead:
            read_bytes += under_way.popleft().result()
        under_way.append(threads.submit(_fill_block, file, index, list(group), read_into))
    return read_bytes + sum(each.result() for each in under_way)


def split(wanted: Iterable[Wanted]) -> Iterator[Wanted]:
    """Yield the same runs, cut where a block ends, those within a block still together."""
    for each in wanted:
        rest = each
        while rest.times:
            left = BLOCK_BYTES - rest.place % BLOCK_BYTES
            if rest.times == 1 or rest.length > left:
                yield from _split_run(replace(rest, times=1))
                rest = rest.after(1)
                continue
            whole = min(rest.times, (left - rest.length) // rest.step + 1)
            yield replace(rest, times=whole)
            rest = rest.after(whole)


def _split_run(run: Wanted) -> Iterator[Wanted]:
    at, target, left = run.place, run.target, run.length
    while left:
        length = min(left, BLOCK_BYTES - at % BLOCK_BYTES)
        yield replace(run, place=at, target=target, length=length)
        at, target, left = at + length, target + length, left - length


def _fill_block(file: VerifiedFile, index: int, wanted: list[Wanted], read_into: ReadInto) -> int:
    start, length = index * BLOCK_BYTES, file.length_of(index)
    unwanted = length - sum(each.num_bytes for each in wanted)
    num_runs = sum(each.times for each in wanted)
    if num_runs <= MAX_RUNS and unwanted <= MAX_SPARE_BYTES:
        spare = memoryview(bytearray(unwanted))
        buffers: list[memoryview] = []
        at, spared = start, 0
        runs = [run for each in wanted for run in each.runs()]
        for place, target in [*runs, (start + length, spare[:0])]:
            gap = place - at
            buffers += [spare[spared : spared + gap], target] if gap else [target]
            at, spared = place + len(target), spared + gap
        file.read_into(index, [buffer for buffer in buffers if buffer], read_into)
        return length
    block = memoryview(bytearray(length))
    file.read_into(index, [block], read_into)
    _copy_out(block, index, wanted)
    return length


def _copy_out(block: memoryview, index: int, wanted: Iterable[Wanted]) -> None:
    for each in wanted:
        source = _items(block, each.place - index * BLOCK_BYTES, each, each.step)
        _items(each.memory, each.target, each, each.target_step)[...] = source


def _items(
    memory: memoryview, first: int, runs: Wanted, step: int
) -> np.ndarray[Any, np.dtype[np.void]]:
    """Return an array over the memory with an item for each run."""
    item = np.dtype((np.void, runs.length))
    return np.ndarray((runs.times,), item, memory, first, (step if runs.times > 1 else 1,))
