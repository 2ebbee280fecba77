"""The state that is saved: tensors as a model and AdamW have them, and a copy to compare with."""

from __future__ import annotations

import ctypes
import time

import torch

MIB = 1 << 20
_MATRIX = (1024, 1024)  # 4 MiB in float32
_VECTORS_PER_MATRIX = 2


def state_of(num_bytes: int, rank: int) -> dict[str, torch.Tensor]:
    """Return tensors of about so many bytes: matrices, and between them vectors, each with the two
    moments of AdamW.
    """
    made = torch.Generator().manual_seed(rank)
    tensors: dict[str, torch.Tensor] = {}
    held = 0
    for layer in range(10**6):
        if held >= num_bytes:
            break
        shapes = [_MATRIX] + [(_MATRIX[0],)] * _VECTORS_PER_MATRIX
        for number, shape in enumerate(shapes):
            for kind in ("model", "optimizer/exp_avg", "optimizer/exp_avg_sq"):
                name = f"{kind}/rank{rank}.layers.{layer}.{number}"
                tensors[name] = torch.rand(shape, generator=made)
                held += tensors[name].numel() * 4
    return tensors


def bytes_of(tensors: dict[str, torch.Tensor]) -> int:
    """Return the bytes of all tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


class Memcpy:
    """One copy of so many bytes into memory that is warm."""

    def __init__(self, num_bytes: int) -> None:
        self._source = torch.ones(num_bytes, dtype=torch.uint8)
        self._target = torch.ones(num_bytes, dtype=torch.uint8)

    def __call__(self) -> float:
        """Copy; return the seconds."""
        started = time.perf_counter()
        ctypes.memmove(self._target.data_ptr(), self._source.data_ptr(), self._source.numel())
        return time.perf_counter() - started
