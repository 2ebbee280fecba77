"""The weights of a checkpoint as whole tensors: verified, put together from their shards, and
without torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

from trainmaster.checkpoint import reshard
from trainmaster.checkpoint.manifest import ShardEntry
from trainmaster.checkpoint.tensor_file import DTYPE_BYTES, TensorSpan
from trainmaster.checkpoint.tiling import Box, whole_shape
from trainmaster.checkpoint.verified import (
    Read,
    Size,
    VerifiedFile,
    checked_spans,
    open_manifest,
    read_state,
    shards_by_file,
)
from trainmaster.errors import UserError

PREFIX = "model/"

Head: TypeAlias = tuple[str, tuple[int, ...]]
"""(safetensors' name of the dtype, shape) of a whole tensor."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a checkpoint is read from, and what it is known by.

    Attributes:
        manifest_sha256: the digest with which it was committed, where known.
    """

    read: Read
    size: Size
    folder: str | None = None
    manifest_sha256: str | None = None


class Weights:
    """The parameters in a checkpoint, the optimizer's state left out.

    Attributes:
        state: the content of `state.json`.
        heads: name -> dtype and shape, by name in UTF-8 byte order. Names are those of the
            workload's parameters, such as `layers.7.attention.out.weight`.
    """

    def __init__(self, source: Source) -> None:
        """Read manifest and state.

        Raises:
            IntegrityError: they are missing, damaged, or another than expected.
            UnavailableError: they cannot be read now.
            UserError: there are no weights in it.
        """
        self._source = source
        self.manifest, self.manifest_sha256 = open_manifest(
            source.read, source.size, folder=source.folder, manifest_sha256=source.manifest_sha256
        )
        self.state: Mapping[str, Any] = read_state(self.manifest, source.read, source.size)
        self._shards = {
            name.removeprefix(PREFIX): shards
            for name, shards in self.manifest.tensors.items()
            if name.startswith(PREFIX)
        }
        if not self._shards:
            raise UserError("there are no weights in the checkpoint", code="no_weights")
        self.heads: dict[str, Head] = {
            name: _head(self._shards[name]) for name in sorted(self._shards, key=str.encode)
        }
        self._expected = shards_by_file(self.manifest)
        self._files: dict[str, tuple[VerifiedFile, dict[str, TensorSpan]]] = {}

    def bytes_of(self, name: str) -> bytearray:
        """Return the elements of a whole tensor, row-major and little-endian.

        Raises:
            IntegrityError: bytes are not what the manifest says; names file, block, expected, seen.
            UnavailableError: they cannot be read now.

        Cost: the tensor, and a block of 16 MiB for each file that holds a part of it.
        """
        dtype, shape = self.heads[name]
        item = DTYPE_BYTES[dtype]
        whole = bytearray(prod(shape) * item)
        wanted = Box((0,) * len(shape), shape)
        shards = self._shards[name]
        for other in self._files.keys() - {shard.file for shard in shards}:
            self._files[other][0].release()
        for shard in shards:
            file, spans = self._opened(shard.file)
            box, start = _box(shard), spans[shard.key].start
            for run in reshard.runs(box, box, wanted) if box.volume else ():
                source, place = start + run.source * item, run.target * item
                for piece in file.pieces(source, source + run.length * item):
                    whole[place : place + len(piece)] = piece
                    place += len(piece)
        return whole

    def _opened(self, name: str) -> tuple[VerifiedFile, dict[str, TensorSpan]]:
        if name not in self._files:
            file = VerifiedFile(name, self.manifest.files[name], self._source.read)
            file.check_size(self._source.size)
            self._files[name] = file, checked_spans(file, self._expected[name])
        return self._files[name]


def digest_of(heads: Mapping[str, Head], bytes_of: Callable[[str], Iterable[memoryview]]) -> str:
    r"""Return SHA-256 over, for each tensor by name in UTF-8 byte order, `name\0DTYPE\0d0,d1,...\0`
    and its bytes: what a run tells of its weights at its end, as 64 hexadecimal digits.
    """
    digest = hashlib.sha256()
    for name in sorted(heads, key=str.encode):
        dtype, shape = heads[name]
        digest.update(f"{name}\0{dtype}\0{','.join(map(str, shape))}\0".encode())
        for piece in bytes_of(name):
            digest.update(piece)
    return digest.hexdigest()


def _head(shards: list[ShardEntry]) -> Head:
    return shards[0].dtype, whole_shape([_box(shard) for shard in shards])


def _box(shard: ShardEntry) -> Box:
    return Box(tuple(shard.global_offset), tuple(shard.shape))
