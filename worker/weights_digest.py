r"""One digest of all weights, the same however they are spread over ranks.

SHA-256 over, for each trainable parameter by name in UTF-8 byte order:
`name\0DTYPE\0d0,d1,...\0` (safetensors' names of dtypes), then its little-endian bytes in
row-major order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

from worker.checkpoint.tensors import DTYPE_NAMES, bytes_of

DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}

Head = tuple[str, str, list[int]]
"""(name, dtype name, shape) of a tensor that a peer holds."""


def weights_sha256(tensors: Mapping[str, torch.Tensor], group: dist.ProcessGroup) -> str | None:
    """Return the digest on the group's first rank and None elsewhere. Collective over one pipeline.

    Args:
        tensors: the trainable parameters of this rank, by name.
    """
    own = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    order = sorted(own, key=str.encode)
    ranks = dist.get_process_group_ranks(group)
    if dist.get_rank() != ranks[0]:
        heads: list[Head] = [
            (name, DTYPE_NAMES[own[name].dtype], list(own[name].shape)) for name in order
        ]
        _send_bytes(json.dumps(heads).encode(), ranks[0], group)
        for name in order:
            dist.send(own[name], dst=ranks[0], group=group)
        return None
    owners: dict[str, tuple[int, Head]] = {
        name: (ranks[0], (name, DTYPE_NAMES[own[name].dtype], list(own[name].shape)))
        for name in order
    }
    for peer in ranks[1:]:
        for head in json.loads(_receive_bytes(peer, group)):
            assert head[0] not in owners, f"{head[0]} is held by two stages"
            owners[head[0]] = (peer, head)
    digest = hashlib.sha256()
    for name in sorted(owners, key=str.encode):
        peer, (_, dtype, shape) = owners[name]
        tensor = own[name] if peer == ranks[0] else _receive_tensor(dtype, shape, peer, group)
        _update(digest, name, dtype, shape, tensor)
    return digest.hexdigest()


def digest_of(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the digest of weights that are all here."""
    digest = hashlib.sha256()
    for name in sorted(tensors, key=str.encode):
        tensor = tensors[name].detach().contiguous()
        _update(digest, name, DTYPE_NAMES[tensor.dtype], tensor.shape, tensor)
    return digest.hexdigest()


def _update(
    digest: hashlib._Hash, name: str, dtype: str, shape: Sequence[int], tensor: torch.Tensor
) -> None:
    digest.update(f"{name}\0{dtype}\0{','.join(map(str, shape))}\0".encode())
    digest.update(bytes_of(tensor))


def _send_bytes(data: bytes, peer: int, group: dist.ProcessGroup) -> None:
    dist.send(torch.tensor([len(data)]), dst=peer, group=group)
    dist.send(torch.frombuffer(bytearray(data), dtype=torch.uint8), dst=peer, group=group)


def _receive_bytes(peer: int, group: dist.ProcessGroup) -> bytes:
    length = torch.zeros(1, dtype=torch.int64)
    dist.recv(length, src=peer, group=group)
    data = torch.empty(int(length), dtype=torch.uint8)
    dist.recv(data, src=peer, group=group)
    return data.numpy().tobytes()


def _receive_tensor(
    dtype: str, shape: Sequence[int], peer: int, group: dist.ProcessGroup
) -> torch.Tensor:
    tensor = torch.empty(list(shape), dtype=DTYPES[dtype])
    dist.recv(tensor, src=peer, group=group)
    return tensor
