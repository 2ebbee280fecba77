"""How a rank's tensors get into host memory: by a plain copy, or from a CUDA device on a stream of
its own, into memory whose pages are locked, while the host goes on.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol

import torch

from worker.checkpoint.segment import Segment
from worker.devices import ComputeDevice

_PORTABLE: Final = 1
"""Locked for all devices (`cudaHostRegisterPortable`)."""
Arrival = Callable[[], None]
"""Waits until everything that was copied is there."""


def at_once() -> None:
    """All of it is there already."""


class Transfer(Protocol):
    """Copies tensors into segments."""

    def lock(self, segment: Segment) -> None:
        """Make a new segment as fast to copy into as it can be."""
        ...

    def beginning(self) -> AbstractContextManager[object]:
        """Return what all copies of one checkpoint are begun in."""
        ...

    def copy(self, segment: Segment, byte: int, tensor: torch.Tensor) -> None:
        """Begin to copy `tensor` to where `byte` of a segment is."""
        ...

    def sent(self) -> Arrival:
        """Return what whoever reads the copies calls first. The tensors may be changed at once."""
        ...


def transfer_of(device: ComputeDevice) -> Transfer:
    """Return the way from a device; nothing of CUDA is touched before the first copy."""
    return FromCuda(device.torch_device) if device.is_cuda else FromHost()


class FromHost:
    """Plain copies: there as soon as they are begun."""

    def lock(self, segment: Segment) -> None:
        """The kernel's pages are as good as any here."""

    def beginning(self) -> AbstractContextManager[object]:
        """Nothing has to be prepared."""
        return nullcontext()

    def copy(self, segment: Segment, byte: int, tensor: torch.Tensor) -> None:
        """Copy as fast as memory is; other threads of this process go on meanwhile."""
        if tensor.is_contiguous() and tensor.is_cpu:
            ctypes.memmove(segment.address + byte, tensor.data_ptr(), tensor.nbytes)
        else:
            segment.at(byte, tensor.dtype, tensor.shape).copy_(tensor)

    def sent(self) -> Arrival:
        """Return what returns at once."""
        return at_once


class FromCuda:
    """Copies on a stream of their own. They begin when the step's work on the device is done; the
    device's next work waits for them, and the host for nothing.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._host = FromHost()
        self._stream: torch.cuda.Stream | None = None

    def lock(self, segment: Segment) -> None:
        """Lock the segment's pages, so that the device writes into them by itself. Where the system
        does not allow that, copies are right and slower.

        To be called in a thread that launches nothing: CUDA would tell the refusal there again.
        """
        runtime, address = torch.cuda.cudart(), segment.tensor_B.data_ptr()
        with torch.cuda.device(self._device):
            refused = int(runtime.cudaHostRegister(address, segment.num_bytes, _PORTABLE))
        if not refused:
            weakref.finalize(segment, runtime.cudaHostUnregister, address).atexit = False

    def beginning(self) -> AbstractContextManager[object]:
        """Return the stream, behind what the device has been given until now."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        return torch.cuda.stream(self._stream)

    def copy(self, segment: Segment, byte: int, tensor: torch.Tensor) -> None:
        """Have the device copy; what lies in host memory already is copied plainly."""
        if not tensor.is_cuda:
            self._host.copy(segment, byte, tensor)
            return
        assert self._stream is not None, "copies are begun inside of `beginning`"
        segment.at(byte, tensor.dtype, tensor.shape).copy_(tensor, non_blocking=True)
        tensor.record_stream(self._stream)  # a temporary's memory is not given away meanwhile

    def sent(self) -> Arrival:
        """Have the device's next work wait; return what waits without holding a core."""
        assert self._stream is not None, "copies were begun"
        arrived = torch.cuda.Event(blocking=True)
        arrived.record(self._stream)
        torch.cuda.current_stream(self._device).wait_event(arrived)
        return arrived.synchronize
