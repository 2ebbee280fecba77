import hashlib
import random
from itertools import pairwise

import pytest

from trainmaster.checkpoint.manifest import BLOCK_BYTES
from worker.checkpoint.stream import DigestedBlocks, blocks


def cut(data: bytes, points: list[int]) -> list[memoryview]:
    return [memoryview(data)[low:high] for low, high in pairwise([0, *sorted(points), len(data)])]


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 40_000_000])
def test_blocks_are_whole_but_for_the_last_whatever_the_chunks(size: int) -> None:
    data = random.Random(size).randbytes(size)
    points = [random.Random(7).randrange(size + 1) for _ in range(9)]
    for chunks in (cut(data, []), cut(data, points)):
        digested = DigestedBlocks(chunks, size)
        seen = [bytes(block) for block in digested]
        assert b"".join(seen) == data
        assert all(len(block) == BLOCK_BYTES for block in seen[:-1])
        entry = digested.entry()
        assert entry.bytes == size
        assert entry.sha256 == f"sha256:{hashlib.sha256(data).hexdigest()}"
        assert entry.blocks == [f"sha256:{hashlib.sha256(block).hexdigest()}" for block in seen]


def test_whole_blocks_within_a_chunk_are_not_copied() -> None:
    data = bytearray(2 * BLOCK_BYTES)
    first, second = blocks([memoryview(data)])
    data[0], data[-1] = 1, 2
    assert (first[0], second[-1]) == (1, 2)
