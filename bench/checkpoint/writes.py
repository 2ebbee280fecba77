"""The bytes of a state written to a new file and made durable: plainly, and hashed on the way."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

from trainmaster.checkpoint.manifest import BLOCK_BYTES
from trainmaster.storage import Storage
from worker.checkpoint.segment import Segment
from worker.checkpoint.stream import DigestedImage


class Image:
    """So many bytes in host memory, as a rank's copy of its state lies there."""

    def __init__(self, num_bytes: int) -> None:
        self._segment = Segment(num_bytes)
        for start in range(0, num_bytes, BLOCK_BYTES):
            piece = self._segment.view[start : start + BLOCK_BYTES]
            piece[:] = os.urandom(len(piece))

    def raw(self, path: Path) -> float:
        """Write the bytes to a new file, in blocks, and sync it; return the seconds."""
        started = time.perf_counter()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            for start in range(0, self._segment.num_bytes, BLOCK_BYTES):
                block = self._segment.view[start : start + BLOCK_BYTES]
                while block:
                    block = block[os.write(descriptor, block) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return time.perf_counter() - started

    def hashed(self, storage: Storage, path: str) -> float:
        """Store the bytes as a checkpoint's file is stored, digests and all; return the seconds."""
        started = time.perf_counter()
        blocks = DigestedImage(self._segment.view)
        storage.put(path, blocks)
        blocks.entry()
        return time.perf_counter() - started

    def digest(self) -> float:
        """Hash the bytes as a checkpoint does, as a whole and block by block; return the seconds
        of processor time.
        """
        began = time.thread_time()
        hashlib.sha256(self._segment.view).digest()
        for start in range(0, self._segment.num_bytes, BLOCK_BYTES):
            hashlib.sha256(self._segment.view[start : start + BLOCK_BYTES]).digest()
        return time.thread_time() - began
