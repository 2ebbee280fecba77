"""Restoring from a checkpoint: any part of any tensor, under any layout, verified before use.

Each rank opens the checkpoint by itself and reads only the blocks that hold what it asks for. Bytes
are hashed in the memory from which they are used, so that nothing can change in between. Nothing is
unpickled.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import torch

from trainmaster.checkpoint import reshard
from trainmaster.checkpoint.manifest import BLOCK_BYTES, Manifest, ShardEntry
from trainmaster.checkpoint.stores import (
    folder_below,
    open_location,
    reader_into,
    readers,
    refuse_if_away,
)
from trainmaster.checkpoint.tensor_file import DTYPE_BYTES, TensorSpan
from trainmaster.checkpoint.tiling import Box, whole_shape
from trainmaster.checkpoint.verified import (
    NOTHING,
    Read,
    ReadInto,
    Size,
    VerifiedFile,
    checked_spans,
    open_manifest,
    read_state,
    shards_by_file,
)
from trainmaster.errors import IntegrityError, UserError
from trainmaster.storage import Storage
from worker.checkpoint.filling import Wanted, fill
from worker.checkpoint.tensors import DTYPE_NAMES, Shard, as_shard, bytes_of

__all__ = ["CheckpointMismatchError", "Loaded", "OpenCheckpoint", "Shard", "open_checkpoint"]

MAX_THREADS: Final = 4
"""That read and hash at once; never more than there are cores to use."""
MAX_BUFFERED_BYTES: Final = (MAX_THREADS + 2) * BLOCK_BYTES
"""Of blocks at once: one under way in each thread, one that waits, one with the file's header."""


class CheckpointMismatchError(UserError):
    """The checkpoint is whole, but holds another model than the one to be restored."""

    code = "checkpoint_mismatch"


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a load cost.

    Attributes:
        bytes: restored into tensors.
        read_bytes: read and verified for it.
    """

    bytes: int
    read_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Move:
    """One part of one shard, and the bytes of the wanted box that it goes to."""

    shard: ShardEntry
    stored: Box
    part: Box
    wanted: Box
    target: memoryview


def open_checkpoint(
    storage: Storage, location_url: str, *, manifest_sha256: str | None
) -> OpenCheckpoint:
    """Return the checkpoint at `location_url` with its manifest and state verified.

    Args:
        storage: used where the location lies below it; elsewhere the location's own is opened.
        manifest_sha256: the digest with which it was committed, where known.

    Raises:
        IntegrityError: the manifest or the state is missing, damaged, or another one than expected.
        UnavailableError: they cannot be read now, or the run's whole store is empty.
        UserError: not the URL of a folder in a store of a known kind.
    """
    folder = folder_below(storage, location_url)
    if folder is None:
        storage, folder = open_location(location_url)
    read, size = readers(storage, folder)
    name = folder.rpartition("/")[2]
    try:
        manifest, seen = open_manifest(read, size, folder=name, manifest_sha256=manifest_sha256)
    except IntegrityError as error:
        if error.seen == NOTHING:
            refuse_if_away(storage)
        raise
    state = read_state(manifest, read, size)
    direct = reader_into(storage, folder)
    return OpenCheckpoint(location_url, manifest, seen, state, read, size, direct)


class OpenCheckpoint:
    """A checkpoint whose manifest and state have proved right.

    Attributes:
        location: its URL.
        manifest_sha256: digest of the bytes of `manifest.json`.
        state: the content of `state.json`.
    """

    def __init__(
        self,
        location: str,
        manifest: Manifest,
        manifest_sha256: str,
        state: dict[str, Any],
        read: Read,
        size: Size,
        read_into: ReadInto,
    ) -> None:
        self.location = location
        self.manifest = manifest
        self.manifest_sha256 = manifest_sha256
        self.state = state
        self._read = read
        self._size = size
        self._read_into = read_into

    def load(self, tensors: Mapping[str, torch.Tensor | Shard]) -> Loaded:
        """Fill the given tensors, in place, with what the checkpoint holds under their names.

        Nothing is cast. When it raises, the tensors hold a mixture of bytes, some never verified:
        throw them away.

        Raises:
            CheckpointMismatchError: a name is not in the checkpoint, or has another shape or dtype;
                all such are named, and nothing has been changed.
            IntegrityError: bytes are not what the manifest says; names file, block, expected, seen.
            UnavailableError: they cannot be read now.

        Cost: besides the tensors a buffer of at most `MAX_BUFFERED_BYTES`; a tensor that is not
        contiguous in host memory is assembled there first.
        """
        started = time.perf_counter()
        shards = {name: as_shard(tensor) for name, tensor in tensors.items()}
        self._refuse_mismatch(shards)
        staged: list[tuple[torch.Tensor, torch.Tensor]] = []
        moves: dict[str, list[_Move]] = {}
        for name, shard in shards.items():
            tensor = shard.tensor.detach()
            if tensor.device.type != "cpu" or not tensor.is_contiguous():
                staged.append((tensor, torch.empty(tensor.shape, dtype=tensor.dtype)))
                tensor = staged[-1][1]
            for move in self._moves(name, shard.box, bytes_of(tensor)):
                moves.setdefault(move.shard.file, []).append(move)
        expected = shards_by_file(self.manifest)
        read_bytes = 0
        num_threads = min(MAX_THREADS, len(os.sched_getaffinity(0)))
        threads = ThreadPoolExecutor(num_threads, thread_name_prefix="restore")
        try:
            for name in sorted(moves):
                file = VerifiedFile(name, self.manifest.files[name], self._read)
                file.check_size(self._size)
                wanted = _wanted(moves[name], checked_spans(file, expected[name]))
                read_bytes += fill(file, wanted, self._read_into, threads, ahead=num_threads + 1)
                read_bytes += file.read_bytes
        finally:
            threads.shutdown(cancel_futures=True)
        for tensor, copy in staged:
            tensor.copy_(copy)
        num_bytes = sum(
            shard.tensor.numel() * shard.tensor.element_size() for shard in shards.values()
        )
        return Loaded(num_bytes, read_bytes, time.perf_counter() - started)

    def _refuse_mismatch(self, shards: Mapping[str, Shard]) -> None:
        problems = [
            f"{name!r} {problem}"
            for name, shard in shards.items()
            if (problem := self._mismatch(name, shard)) is not None
        ]
        if problems:
            raise CheckpointMismatchError(
                f"{self.location} does not fit the model: " + "; ".join(problems)
            )

    def _mismatch(self, name: str, shard: Shard) -> str | None:
        stored = self.manifest.tensors.get(name)
        if stored is None:
            return "is not in it"
        wanted_dtype = DTYPE_NAMES.get(shard.tensor.dtype, str(shard.tensor.dtype))
        if stored[0].dtype != wanted_dtype:
            return f"is {stored[0].dtype} in it and {wanted_dtype} here"
        shape = whole_shape([_box(entry) for entry in stored])
        if shape != tuple(shard.global_shape):
            return f"has the shape {list(shape)} in it and {list(shard.global_shape)} here"
        return None

    def _moves(self, name: str, wanted: Box, target: memoryview) -> Iterator[_Move]:
        entries = self.manifest.tensors[name]
        boxes = [_box(entry) for entry in entries]
        for fetch in reshard.plan(wanted, boxes):
            yield _Move(entries[fetch.index], boxes[fetch.index], fetch.part, wanted, target)


def _wanted(moves: Iterable[_Move], spans: Mapping[str, TensorSpan]) -> Iterator[Wanted]:
    for move in sorted(moves, key=lambda move: spans[move.shard.key].start):
        start, item = spans[move.shard.key].start, DTYPE_BYTES[move.shard.dtype]
        for each in reshard.stripes(move.part, move.stored, move.wanted):
            yield Wanted(
                place=start + each.source * item,
                memory=move.target,
                target=each.target * item,
                length=each.length * item,
                times=each.times,
                step=each.source_step * item,
                target_step=each.target_step * item,
            )


def _box(entry: ShardEntry) -> Box:
    return Box(tuple(entry.global_offset), tuple(entry.shape))
