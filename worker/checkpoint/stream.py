"""A file's bytes as blocks with digests, while they are being written. No torch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from trainmaster.checkpoint.manifest import BLOCK_BYTES, FileEntry, sha256


def blocks(chunks: Iterable[memoryview]) -> Iterator[memoryview]:
    """Yield the bytes of `chunks` as blocks of `BLOCK_BYTES`; only the last may be shorter.

    A block is good until the next one is asked for. Whole blocks within a chunk are not copied.
    """
    buffer = memoryview(bytearray(0))
    filled = 0
    for chunk in chunks:
        rest = chunk
        while rest:
            if not filled and len(rest) >= BLOCK_BYTES:
                yield rest[:BLOCK_BYTES]
                rest = rest[BLOCK_BYTES:]
                continue
            if not buffer:
                buffer = memoryview(bytearray(BLOCK_BYTES))
            taken = min(len(rest), BLOCK_BYTES - filled)
            buffer[filled : filled + taken] = rest[:taken]
            filled += taken
            rest = rest[taken:]
            if filled == BLOCK_BYTES:
                yield buffer
                filled = 0
    if filled:
        yield buffer[:filled]


class DigestedBlocks:
    """The blocks of one file, to be iterated once; then `entry` tells their digests.

    Two threads hash a block while the consumer writes it. A file of one block is hashed once.
    """

    def __init__(self, chunks: Iterable[memoryview], num_bytes: int) -> None:
        self._chunks = chunks
        self._num_bytes = num_bytes
        self._whole = hashlib.sha256()
        self._blocks: list[str] = []

    def __iter__(self) -> Iterator[memoryview]:
        with ThreadPoolExecutor(2, thread_name_prefix="digest") as threads:
            is_long = self._num_bytes > BLOCK_BYTES
            seen = 0
            for block in blocks(self._chunks):
                of_block = threads.submit(sha256, block)
                of_whole = threads.submit(self._whole.update, block) if is_long else None
                yield block
                self._blocks.append(of_block.result())
                if of_whole is not None:
                    of_whole.result()
                seen += len(block)
        assert seen == self._num_bytes, f"{seen} bytes came where {self._num_bytes} were announced"

    def entry(self) -> FileEntry:
        """Return the file's entry in the manifest.

        Assumes:
            The iteration has ended.
        """
        whole = self._blocks[0] if len(self._blocks) == 1 else f"sha256:{self._whole.hexdigest()}"
        return FileEntry(bytes=self._num_bytes, sha256=whole, blocks=self._blocks)


class DigestedImage:
    """The same for a file that lies in memory as a whole. Two threads hash it as fast as they can;
    whoever writes it waits for none of them, until `entry` is asked for.
    """

    def __init__(self, image: memoryview) -> None:
        self._image = image
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="digest")
        self._of_blocks = self._threads.submit(self._hash_blocks)
        self._of_whole = self._threads.submit(sha256, image) if len(image) > BLOCK_BYTES else None
        self._threads.shutdown(wait=False)  # what was begun is ended

    def __iter__(self) -> Iterator[memoryview]:
        return blocks([self._image])

    def entry(self) -> FileEntry:
        """Return the file's entry in the manifest."""
        found = self._of_blocks.result()
        whole = found[0] if self._of_whole is None else self._of_whole.result()
        return FileEntry(bytes=len(self._image), sha256=whole, blocks=found)

    def _hash_blocks(self) -> list[str]:
        return [sha256(block) for block in blocks([self._image])]
