"""Tensors as the bytes of a checkpoint: dtype names, parts of larger tensors, finiteness."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from trainmaster.checkpoint.tiling import Box

assert sys.byteorder == "little", "checkpoints are little-endian, and bytes are taken as they are"

DTYPE_NAMES: Mapping[torch.dtype, str] = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.float32: "F32",
    torch.int64: "I64",
    torch.uint64: "U64",
    torch.float64: "F64",
    torch.complex64: "C64",
}
"""torch dtype -> safetensors name."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A rank's part of a tensor that other ranks hold the rest of.

    Attributes:
        tensor: the part.
        global_offset: where its first element lies in the whole tensor, per axis.
        global_shape: shape of the whole tensor.
    """

    tensor: torch.Tensor
    global_offset: tuple[int, ...]
    global_shape: tuple[int, ...]

    def __post_init__(self) -> None:
        # A step waits for this when it is saved, once for each tensor: so no boxes are made for it.
        places = zip(self.global_offset, self.tensor.shape, self.global_shape, strict=True)
        for low, size, whole in places:
            assert 0 <= low <= low + size <= whole, "lies in the whole"

    @property
    def box(self) -> Box:
        """Where the part lies in the whole."""
        return Box(tuple(self.global_offset), tuple(self.tensor.shape))


def as_shard(tensor: torch.Tensor | Shard) -> Shard:
    """Return a whole tensor as the shard that it is; a shard as it stands."""
    if isinstance(tensor, Shard):
        return tensor
    return Shard(tensor, (0,) * tensor.dim(), tuple(tensor.shape))


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the elements' bytes in row-major order.

    The memory is the tensor's own where it is contiguous and on the CPU, else a copy's.
    """
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    array: Any = flat.view(torch.uint8).numpy()  # numpy's annotations hide that it is a buffer
    return memoryview(array)


def is_finite(tensor: torch.Tensor) -> bool:
    """Return whether no element is NaN or infinite."""
    detached = tensor.detach()
    if not (detached.is_floating_point() or detached.is_complex()) or not detached.numel():
        return True
    if detached.element_size() == 1:  # float8 has no reductions
        detached = detached.float()
    # A sum is 30 times as fast as isfinite, and any bad element makes it bad. It may also overflow.
    if torch.isfinite(detached.sum()):
        return True
    return bool(torch.isfinite(detached).all())
