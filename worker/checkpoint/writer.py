"""Saving a checkpoint: all ranks of a generation together, and one moment at which it exists.

The invariant: a folder with a manifest is a whole checkpoint; a folder without is none. So the
manifest is created last, exclusively, by rank 0, and only after every rank has said that its bytes
are durable. Three agreements make it so (`peers.Peers.agree`), and no rank passes one alone:

1. prepared: all tensors are finite, and no checkpoint stands where this one is to stand;
2. written: each rank's file, and rank 0's `state.json`, are synced under their final names;
3. committed: rank 0 has created the manifest, or it has not and nobody believes so.

Writing under another folder's name and renaming that folder at the end was rejected: object stores
cannot rename, and one rule of commitment for all stores is worth more than a tidier folder.

Crash: before the manifest there is no checkpoint, only files that retiring the folder removes;
after it there is a whole one, even if no rank lives to tell.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed import ProcessGroup

from trainmaster.checkpoint import manifest as manifests
from trainmaster.checkpoint.consistency import contradiction
from trainmaster.checkpoint.manifest import (
    MANIFEST_NAME,
    STATE_NAME,
    FileEntry,
    Manifest,
    Parent,
    ShardEntry,
)
from trainmaster.errors import ConflictError, UnavailableError
from trainmaster.ids import checkpoint_folder
from trainmaster.storage import Storage
from worker.checkpoint import part as parts
from worker.checkpoint.part import About, Part
from worker.checkpoint.peers import CheckpointWriteError, NonFiniteStateError, Peers
from worker.checkpoint.stream import DigestedBlocks, DigestedImage
from worker.checkpoint.tensors import DTYPE_NAMES, Shard, is_finite

__all__ = ["CheckpointWriteError", "NonFiniteStateError", "Saved", "Shard", "save", "save_part"]


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint that is whole; the same on every rank but for the time and the state.

    Attributes:
        encoded: the content of `manifest.json`.
        manifest_sha256: its digest.
        location: URL of the folder; None where it was not stored.
        bytes, files: of all ranks, the manifest left out.
        state: the content of `state.json`, on rank 0.
        seconds: from the call to its return on this rank.
    """

    manifest: Manifest
    encoded: bytes
    manifest_sha256: str
    location: str | None
    state: bytes | None
    seconds: float
    bytes: int
    files: int


def save(
    storage: Storage,
    *,
    run: str,
    generation: int,
    step: int,
    layout: dict[str, Any],
    parent: Parent | None,
    tensors: Mapping[str, torch.Tensor | Shard],
    state: Mapping[str, Any] | None,
    group: ProcessGroup | None,
    rank: int,
    world_size: int,
) -> Saved:
    """Commit the checkpoint that `generation` takes after `step`, from the tensors themselves: they
    must not change until the call returns. Otherwise as `save_part`.

    Args:
        tensors: those that this rank owns, by name; each part of each tensor has one owner. A rank
            may own none.
    """
    about = About(run, generation, step, rank)
    return save_part(
        storage,
        lambda: parts.of_tensors(tensors, about),
        about=about,
        layout=layout,
        parent=parent,
        state=state,
        peers=Peers(group, rank, world_size),
    )


def save_part(
    storage: Storage | None,
    part: Callable[[], Part],
    *,
    about: About,
    layout: dict[str, Any],
    parent: Parent | None,
    state: Mapping[str, Any] | None,
    peers: Peers,
) -> Saved:
    """Commit a checkpoint of which this rank has a part; a collective over all ranks.

    Args:
        storage: the run's checkpoint folder; None to have it digested and stored nowhere.
        part: gives this rank's part; what it raises fails all.
        state: what else is needed to resume, as JSON without NaN or infinity; given by rank 0.

    Raises:
        NonFiniteStateError: a tensor or the state holds NaN or infinity, on any rank.
        ConflictError: that checkpoint is committed already.
        CheckpointWriteError: the store did not do its part, on any rank.

    Each is raised on all ranks together, and nothing is committed then.

    Cost: reads every tensor once, hashes each byte twice in other threads while it is written, and
    holds one block of 16 MiB besides where the part is not in one piece.
    """
    started = time.perf_counter()
    folder = checkpoint_folder(about.generation, about.step)
    where = "" if storage is None else f" to {storage.url}"
    failed = f"checkpoint {folder} was not written{where}"

    def prepare() -> _Share:
        if peers.rank == 0 and storage is not None:
            _refuse_if_committed(storage, folder)
        return _prepare(part(), state if peers.rank == 0 else None, peers.rank)

    share = peers.agree(failed, prepare)
    with ExitStack() as failing:
        if peers.rank == 0 and storage is not None:
            # Every rank has stopped writing then, so that the space can be given back.
            failing.callback(_delete, storage, folder)
        entries = peers.agree(failed, lambda: _write(storage, folder, share))
        failing.pop_all()
    gathered = peers.gather(entries)

    def commit() -> bytes | None:
        if peers.rank != 0:
            return None
        manifest = manifests.seal(
            run=about.run,
            generation=about.generation,
            step=about.step,
            layout=layout,
            parent=parent,
            **_merge(gathered),
        )
        problem = contradiction(manifest, folder)
        assert problem is None, problem
        data = manifests.encode(manifest)
        if storage is not None:
            _create_manifest(storage, folder, data)
        return data

    data = peers.broadcast(peers.agree(failed, commit))
    manifest = manifests.decode(data)
    return Saved(
        manifest=manifest,
        encoded=data,
        manifest_sha256=manifests.sha256(data),
        location=None if storage is None else f"{storage.url}/{folder}",
        bytes=manifest.total_bytes,
        files=len(manifest.files),
        state=share.state,
        seconds=time.perf_counter() - started,
    )


@dataclass(frozen=True, slots=True)
class _Share:
    """What one rank puts into a checkpoint: a file of tensors, and on rank 0 the state."""

    part: Part
    state: bytes | None


def _refuse_if_committed(storage: Storage, folder: str) -> None:
    try:
        storage.size(f"{folder}/{MANIFEST_NAME}")
    except FileNotFoundError:
        return
    raise ConflictError(f"{storage.url}/{folder} is committed already", code="already_committed")


def _delete(storage: Storage, folder: str) -> None:
    with suppress(OSError, UnavailableError):  # the error that led here is the one to tell
        storage.delete_folder(folder)


def _prepare(part: Part, state: Mapping[str, Any] | None, rank: int) -> _Share:
    bad = [name for name, shard in part.shards.items() if not is_finite(shard.tensor)]
    if bad:
        raise NonFiniteStateError(
            f"{bad[0]!r} holds NaN or infinity" + (f", and {len(bad) - 1} more" if bad[1:] else "")
        )
    return _Share(part, _encode_state(state) if rank == 0 else None)


def _encode_state(state: Mapping[str, Any] | None) -> bytes:
    assert state is not None, "rank 0 gives the state"
    try:
        text = json.dumps(dict(state), indent=1, sort_keys=True, allow_nan=False)
    except ValueError as error:
        raise NonFiniteStateError(f"{STATE_NAME} cannot hold the state: {error}") from error
    return (text + "\n").encode()


def _write(storage: Storage | None, folder: str, share: _Share) -> bytes:
    """Store this rank's files, or only digest them; return their part of the manifest as JSON."""
    files: dict[str, FileEntry] = {}
    part = share.part
    if part.shards:
        blocks: DigestedBlocks | DigestedImage = (
            DigestedImage(part.image)
            if part.image is not None
            else DigestedBlocks(part.chunks(), part.num_bytes)
        )
        files[part.file] = _put(storage, f"{folder}/{part.file}", blocks)
    if share.state is not None:
        blocks = DigestedBlocks([memoryview(share.state)], len(share.state))
        files[STATE_NAME] = _put(storage, f"{folder}/{STATE_NAME}", blocks)
    entries = {
        "files": {name: entry.model_dump() for name, entry in files.items()},
        "tensors": {
            name: {
                "file": part.file,
                "key": name,
                "global_offset": list(shard.box.offset),
                "shape": list(shard.box.shape),
                "dtype": DTYPE_NAMES[shard.tensor.dtype],
            }
            for name, shard in part.shards.items()
        },
    }
    return json.dumps(entries).encode()


def _put(storage: Storage | None, path: str, blocks: DigestedBlocks | DigestedImage) -> FileEntry:
    if storage is not None:
        storage.put(path, blocks)
    else:
        for _ in blocks:
            pass
    return blocks.entry()


def _merge(gathered: list[bytes]) -> dict[str, dict[str, Any]]:
    """Return all ranks' entries as the manifest's `files` and `tensors`."""
    files: dict[str, FileEntry] = {}
    tensors: dict[str, list[ShardEntry]] = {}
    for data in gathered:
        entries = json.loads(data)
        for name, entry in entries["files"].items():
            files[name] = FileEntry.model_validate(entry)
        for name, shard in entries["tensors"].items():
            tensors.setdefault(name, []).append(ShardEntry.model_validate(shard))
    for shards in tensors.values():
        shards.sort(key=lambda shard: (shard.global_offset, shard.file))
    return {"files": files, "tensors": tensors}


def _create_manifest(storage: Storage, folder: str, data: bytes) -> None:
    path = f"{folder}/{MANIFEST_NAME}"
    try:
        storage.create(path, data)
    except (OSError, UnavailableError):
        # It may be there all the same, when only the answer was lost. Nobody will believe in it, so
        # it must go before the bytes that it names; where it cannot, they stay.
        with suppress(OSError, UnavailableError):
            storage.delete(path)
            storage.delete_folder(folder)
        raise
