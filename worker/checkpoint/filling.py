"""Bytes of a file into the memory they are for: block by block, several threads at once.

A block that is wanted nearly whole is read straight into that memory and hashed there, so that no
byte is moved twice; of one that is wanted in small parts, these are copied out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future
from itertools import groupby
from typing import Final, TypeAlias

from trainmaster.manifest import BLOCK_BYTES
from trainmaster.verified import ReadInto, VerifiedFile

Segment: TypeAlias = tuple[int, memoryview]
"""(byte of the file, the memory that what begins there is for)."""
MAX_SEGMENTS: Final = 256
MAX_SPARE_BYTES: Final = BLOCK_BYTES // 4
"""Of a block that is read straight into place: what nobody wants of it, such as a header."""


def fill(
    file: VerifiedFile,
    segments: Iterable[Segment],
    read_into: ReadInto,
    threads: Executor,
    *,
    ahead: int,
) -> int:
    """Fill all segments, given in order of their place in the file, with verified bytes; return the
    number of bytes read for it. At most `ahead` blocks are under way.

    Raises:
        IntegrityError: bytes are not what the manifest says. What is in the memory then is not to
            be used.
        UnavailableError: they cannot be read now.
    """
    under_way: deque[Future[int]] = deque()
    read_bytes = 0
    for index, group in groupby(_split(segments), key=lambda segment: segment[0] // BLOCK_BYTES):
        if (kept := file.kept(index)) is not None:
            _copy_out(memoryview(kept), index, group)
            continue
        if len(under_way) == ahead:
            read_bytes += under_way.popleft().result()
        under_way.append(threads.submit(_fill_block, file, index, list(group), read_into))
    return read_bytes + sum(each.result() for each in under_way)


def _split(segments: Iterable[Segment]) -> Iterator[Segment]:
    """Yield the segments, cut where a block ends."""
    for start, target in segments:
        at, rest = start, target
        while rest:
            length = min(len(rest), BLOCK_BYTES - at % BLOCK_BYTES)
            yield at, rest[:length]
            at += length
            rest = rest[length:]


def _fill_block(
    file: VerifiedFile, index: int, segments: list[Segment], read_into: ReadInto
) -> int:
    start, length = index * BLOCK_BYTES, file.length_of(index)
    wanted = sum(len(target) for _, target in segments)
    if len(segments) <= MAX_SEGMENTS and length - wanted <= MAX_SPARE_BYTES:
        spare = memoryview(bytearray(length - wanted))
        buffers: list[memoryview] = []
        at, spared = start, 0
        for place, target in [*segments, (start + length, spare[:0])]:
            gap = place - at
            buffers += [spare[spared : spared + gap], target] if gap else [target]
            at, spared = place + len(target), spared + gap
        file.read_into(index, [buffer for buffer in buffers if buffer], read_into)
        return length
    block = memoryview(bytearray(length))
    file.read_into(index, [block], read_into)
    _copy_out(block, index, segments)
    return length


def _copy_out(block: memoryview, index: int, segments: Iterable[Segment]) -> None:
    for place, target in segments:
        first = place - index * BLOCK_BYTES
        target[:] = block[first : first + len(target)]
