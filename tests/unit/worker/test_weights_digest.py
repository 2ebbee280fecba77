"""The digest of weights, as outsiders compute it."""

from __future__ import annotations

import hashlib
import struct

import torch

from worker.weights_digest import digest_of


def test_it_is_what_the_contract_says() -> None:
    tensors = {
        "layers.2.weight": torch.tensor([[1.0, -2.0], [0.5, 4.0]]),
        "layers.10.bias": torch.tensor([3.0]),
        "layers.10.é": torch.tensor(7.0, dtype=torch.float64),
    }
    digest = hashlib.sha256()
    digest.update(b"layers.10.bias\0F32\x001\0" + struct.pack("<f", 3.0))
    digest.update("layers.10.é".encode() + b"\0F64\0\0" + struct.pack("<d", 7.0))
    digest.update(b"layers.2.weight\0F32\x002,2\0" + struct.pack("<4f", 1.0, -2.0, 0.5, 4.0))
    assert digest_of(tensors) == digest.hexdigest()


def test_how_a_tensor_lies_in_memory_does_not_matter() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    lying = tensor.t().contiguous().t()
    assert not lying.is_contiguous()
    assert digest_of({"w": tensor}) == digest_of({"w": lying})
