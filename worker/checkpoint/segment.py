"""Host memory into which a rank copies its part of a checkpoint: taken once, touched, used again.

With a path it is a file in a file system that lives in memory, so that it outlives the rank.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch


class Segment:
    """So many bytes of host memory.

    Attributes:
        path: the file that it is; None for memory of this process alone.

    Raises:
        OSError: there is not enough. Asked for before anything is touched: a page that a full file
            system cannot give would end the process.
    """

    def __init__(self, num_bytes: int, path: Path | None = None) -> None:
        self.num_bytes = num_bytes
        self.path = path
        descriptor = -1
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                os.posix_fallocate(descriptor, 0, max(1, num_bytes))
                os.ftruncate(descriptor, num_bytes)
            self._memory = mmap.mmap(descriptor, max(1, num_bytes))
        except OSError:
            self.discard()
            raise
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        self.tensor_B = torch.frombuffer(self._memory, dtype=torch.uint8)[:num_bytes]
        """The bytes, as a tensor."""
        self.address = self.tensor_B.data_ptr()

    def at(self, byte: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
        """Return the tensor whose elements begin at `byte`, on the same memory."""
        end = byte + math.prod(shape) * dtype.itemsize
        return self.tensor_B[byte:end].view(dtype).view(tuple(shape))

    @property
    def view(self) -> memoryview:
        """The bytes, as a buffer."""
        array: Any = self.tensor_B.numpy()  # numpy's annotations hide that it is a buffer
        return memoryview(array)

    def touch(self) -> None:
        """Have the kernel hand out every page now: the first copy into cold memory takes four
        times as long. Other threads go on meanwhile.
        """
        ctypes.memset(self.address, 0, self.num_bytes)

    def discard(self) -> None:
        """Remove the file. The memory goes when nothing uses it any more."""
        if self.path is not None:
            with suppress(OSError):
                self.path.unlink(missing_ok=True)
