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
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed import ProcessGroup

from trainmaster import manifest as manifests
from trainmaster.consistency import contradiction
from trainmaster.errors import ConflictError, UnavailableError, UserError
from trainmaster.ids import checkpoint_folder
from trainmaster.manifest import MANIFEST_NAME, STATE_NAME, FileEntry, Manifest, Parent, ShardEntry
from trainmaster.storage import Storage
from trainmaster.tensor_file import encode_header
from worker.checkpoint.peers import CheckpointWriteError, NonFiniteStateError, Peers
from worker.checkpoint.stream import DigestedBlocks
from worker.checkpoint.tensors import DTYPE_NAMES, Shard, as_shard, bytes_of, is_finite

__all__ = ["CheckpointWriteError", "NonFiniteStateError", "Saved", "Shard", "save"]


@dataclass(frozen=True, slots=True)
class Saved:
    """A committed checkpoint; the same on every rank but for the time.

    Attributes:
        manifest_sha256: digest of the bytes of `manifest.json`.
        location: URL of the folder.
        bytes, files: what was written by all ranks, the manifest left out.
        seconds: from the call to its return on this rank.
    """

    manifest: Manifest
    manifest_sha256: str
    location: str
    bytes: int
    files: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Share:
    """What one rank puts into a checkpoint: a file of tensors, and on rank 0 the state."""

    file: str
    header: bytes
    shards: dict[str, Shard]  # in the order of the file
    num_bytes: int
    state: bytes | None


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
    """Commit the checkpoint that `generation` takes after `step`; a collective over all ranks.

    Args:
        storage: the run's checkpoint folder.
        tensors: those that this rank owns, by name; each part of each tensor has one owner. A rank
            may own none. They must not change until the call returns.
        state: what else is needed to resume, as JSON without NaN or infinity; given by rank 0.
        group: a Gloo group of all ranks; None is the default one, or none where one rank is all.

    Raises:
        NonFiniteStateError: a tensor or the state holds NaN or infinity, on any rank.
        ConflictError: that checkpoint is committed already.
        CheckpointWriteError: the store did not do its part, on any rank.

    Each is raised on all ranks together, and nothing is committed then.

    Cost: reads every tensor once, hashes each byte twice in other threads while it is written, and
    holds one block of 16 MiB besides.
    """
    started = time.perf_counter()
    folder = checkpoint_folder(generation, step)
    location = f"{storage.url}/{folder}"
    failed = f"checkpoint {folder} was not written"
    peers = Peers(group, rank, world_size)

    def prepare() -> _Share:
        if rank == 0:
            _refuse_if_committed(storage, folder, location)
        about = {"run": run, "generation": str(generation), "step": str(step), "rank": str(rank)}
        return _prepare(tensors, state if rank == 0 else None, rank, about)

    share = peers.agree(failed, prepare)
    with ExitStack() as failing:
        if rank == 0:  # every rank has stopped writing then, so that the space can be given back
            failing.callback(_delete, storage, folder)
        entries = peers.agree(failed, lambda: _write(storage, folder, share))
        failing.pop_all()
    gathered = peers.gather(entries)

    def commit() -> bytes | None:
        if rank != 0:
            return None
        manifest = manifests.seal(
            run=run,
            generation=generation,
            step=step,
            layout=layout,
            parent=parent,
            **_merge(gathered),
        )
        problem = contradiction(manifest, folder)
        assert problem is None, problem
        return _create_manifest(storage, folder, manifest)

    data = peers.broadcast(peers.agree(failed, commit))
    manifest = manifests.decode(data)
    return Saved(
        manifest=manifest,
        manifest_sha256=manifests.sha256(data),
        location=location,
        bytes=manifest.total_bytes,
        files=len(manifest.files),
        seconds=time.perf_counter() - started,
    )


def _refuse_if_committed(storage: Storage, folder: str, location: str) -> None:
    try:
        storage.size(f"{folder}/{MANIFEST_NAME}")
    except FileNotFoundError:
        return
    raise ConflictError(f"{location} is committed already", code="already_committed")


def _delete(storage: Storage, folder: str) -> None:
    with suppress(OSError, UnavailableError):  # the error that led here is the one to tell
        storage.delete_folder(folder)


def _prepare(
    tensors: Mapping[str, torch.Tensor | Shard],
    state: Mapping[str, Any] | None,
    rank: int,
    about: Mapping[str, str],
) -> _Share:
    shards = {name: as_shard(tensor) for name, tensor in tensors.items()}
    for name, shard in shards.items():
        if shard.tensor.dtype not in DTYPE_NAMES:
            raise UserError(f"{name!r} is {shard.tensor.dtype}, which a checkpoint cannot hold")
    bad = [name for name, shard in shards.items() if not is_finite(shard.tensor)]
    if bad:
        raise NonFiniteStateError(
            f"{bad[0]!r} holds NaN or infinity" + (f", and {len(bad) - 1} more" if bad[1:] else "")
        )
    header, spans = encode_header(
        [
            (name, DTYPE_NAMES[shard.tensor.dtype], tuple(shard.tensor.shape))
            for name, shard in shards.items()
        ],
        {"format": "pt", **about},
    )
    return _Share(
        file=f"rank-{rank:05d}.safetensors",
        header=header,
        shards={name: shards[name] for name in spans},
        num_bytes=max((span.end for span in spans.values()), default=len(header)),
        state=_encode_state(state) if rank == 0 else None,
    )


def _encode_state(state: Mapping[str, Any] | None) -> bytes:
    assert state is not None, "rank 0 gives the state"
    try:
        text = json.dumps(dict(state), indent=1, sort_keys=True, allow_nan=False)
    except ValueError as error:
        raise NonFiniteStateError(f"{STATE_NAME} cannot hold the state: {error}") from error
    return (text + "\n").encode()


def _write(storage: Storage, folder: str, share: _Share) -> bytes:
    """Store this rank's files; return their part of the manifest as JSON."""
    files: dict[str, FileEntry] = {}
    if share.shards:
        blocks = DigestedBlocks(_chunks(share), share.num_bytes)
        storage.put(f"{folder}/{share.file}", blocks)
        files[share.file] = blocks.entry()
    if share.state is not None:
        blocks = DigestedBlocks([memoryview(share.state)], len(share.state))
        storage.put(f"{folder}/{STATE_NAME}", blocks)
        files[STATE_NAME] = blocks.entry()
    entries = {
        "files": {name: entry.model_dump() for name, entry in files.items()},
        "tensors": {
            name: {
                "file": share.file,
                "key": name,
                "global_offset": list(shard.box.offset),
                "shape": list(shard.box.shape),
                "dtype": DTYPE_NAMES[shard.tensor.dtype],
            }
            for name, shard in share.shards.items()
        },
    }
    return json.dumps(entries).encode()


def _chunks(share: _Share) -> Iterator[memoryview]:
    yield memoryview(share.header)
    for shard in share.shards.values():
        yield bytes_of(shard.tensor)


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


def _create_manifest(storage: Storage, folder: str, manifest: Manifest) -> bytes:
    data = manifests.encode(manifest)
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
    return data
