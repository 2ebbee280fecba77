"""Bytes appended to a new file, past the page cache where that can be.

What a checkpoint leaves in the page cache takes memory from those who read, and the processor from
training. So large chunks are written past it (O_DIRECT). They go through a buffer of large pages: a
request to the disk lists only so many pages of memory, and from small ones the kernel makes it many
small requests, which took two to three times as long on the disk that was measured. What is short,
and whatever a file system cannot write so, goes through the cache; the bytes are the same. Either
way only a sync makes them durable.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from contextlib import suppress
from typing import Final

from trainmaster.storage import Buffer

ALIGNMENT_BYTES: Final = 4096
"""Of places in the file and lengths: no file system asks for more."""
LEAST_DIRECT_BYTES: Final = 1 << 20
"""A shorter write would wait for the disk longer than it saves."""
BUFFER_BYTES: Final = 4 << 20
"""A larger one is no faster."""
_COPIED_AT_ONCE_BYTES: Final = 1 << 20
"""No other thread of Python's runs while so much is copied: a tenth of a millisecond."""
_SYNC_FILE_RANGE_WRITE: Final = 2
_libc = ctypes.CDLL(None)


class Appender:
    """Writes a file from its beginning, chunk by chunk.

    Args:
        descriptor: of an empty file, open for writing. It stays the caller's.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._may_be_direct = True
        self._buffer: memoryview | None = None
        self.num_bytes = 0
        """Written so far."""
        self.direct_bytes = 0
        """Of them, past the page cache."""

    def append(self, chunk: Buffer) -> None:
        """Write one chunk. It may change when this returns.

        Raises:
            OSError: it cannot be written.
        """
        rest = memoryview(chunk).cast("B")
        aligned = len(rest) - len(rest) % ALIGNMENT_BYTES
        if (
            self._may_be_direct
            and aligned >= LEAST_DIRECT_BYTES
            and self.num_bytes % ALIGNMENT_BYTES == 0
        ):
            rest = rest[self._write_directly(rest[:aligned]) :]
        if rest:
            self._write_cached(rest)

    def _write_directly(self, data: memoryview) -> int:
        """Write what can be written so; return how many bytes that were."""
        written = 0
        try:
            self._be_direct(True)
            while written < len(data):
                written += os.write(self._descriptor, self._buffered(data[written:]))
        except OSError as error:
            if error.errno not in {errno.EINVAL, errno.EOPNOTSUPP}:
                raise
            self._may_be_direct = False
        finally:
            self._be_direct(False)
        self.num_bytes += written
        self.direct_bytes += written
        return written

    def _buffered(self, data: memoryview) -> memoryview:
        """Return the buffer with the beginning of `data` in it."""
        if self._buffer is None:
            self._buffer = _large_pages(BUFFER_BYTES)
        size = min(len(data), BUFFER_BYTES)
        for start in range(0, size, _COPIED_AT_ONCE_BYTES):
            end = min(size, start + _COPIED_AT_ONCE_BYTES)
            self._buffer[start:end] = data[start:end]
        return self._buffer[:size]

    def _be_direct(self, direct: bool) -> None:
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL) & ~os.O_DIRECT
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | (os.O_DIRECT if direct else 0))

    def _write_cached(self, data: memoryview) -> None:
        written = 0
        while written < len(data):
            written += os.write(self._descriptor, data[written:])
        # The disk begins with them, so that the sync finds little left to do. Only the sync is a
        # promise, so what comes of this does not matter.
        _libc.sync_file_range(
            self._descriptor,
            ctypes.c_int64(self.num_bytes),
            ctypes.c_int64(written),
            _SYNC_FILE_RANGE_WRITE,
        )
        self.num_bytes += written


def _large_pages(num_bytes: int) -> memoryview:
    """Return new memory, in pages of 2 MiB where the kernel has them."""
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)
