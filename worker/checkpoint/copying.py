"""Copies a committed checkpoint into another store, byte for byte. Never decides which.

Every block is verified on its way. The manifest is created last, as by those who save, so that the
copy is whole or none; a copy that was cut short goes on with the files that are not there yet.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from trainmaster.checkpoint import manifest as manifests
from trainmaster.checkpoint.manifest import MANIFEST_NAME, FileEntry
from trainmaster.checkpoint.stores import open_location, readers
from trainmaster.checkpoint.verified import Read, VerifiedFile, open_manifest
from trainmaster.errors import ConflictError
from trainmaster.storage import Storage
from worker.checkpoint.pace import Pace


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy cost.

    Attributes:
        bytes: sent, those that an earlier try had sent left out.
        files: of the checkpoint, the manifest left out.
    """

    location: str
    bytes: int
    files: int
    seconds: float


def copy_checkpoint(source: str, target: str, *, manifest_sha256: str, pace: Pace) -> Copied:
    """See to it that the checkpoint at the URL `source` stands at the URL `target`, too.

    Raises:
        IntegrityError: the source is damaged; nothing is committed at the target.
        ConflictError: another checkpoint stands there.
        UserError: a URL that no backend serves.
        UnavailableError, OSError: a store did not do its part; asking again goes on.
    """
    started = time.perf_counter()
    (from_store, from_folder), (to_store, to_folder) = open_location(source), open_location(target)
    read, size = readers(from_store, from_folder)
    manifest, _ = open_manifest(read, size, folder=from_folder, manifest_sha256=manifest_sha256)
    sent = 0
    if not _stands(to_store, to_folder, manifest_sha256, target):
        for name, entry in sorted(manifest.files.items()):
            if _size_of(to_store, f"{to_folder}/{name}") != entry.bytes:
                blocks = _blocks(name, entry, read, pace)
                sent += to_store.put(f"{to_folder}/{name}", blocks)
        data = read(MANIFEST_NAME, 0, size(MANIFEST_NAME))
        try:
            to_store.create(f"{to_folder}/{MANIFEST_NAME}", data)
        except ConflictError:  # two copied at once, the same bytes
            if not _stands(to_store, to_folder, manifest_sha256, target):
                raise
    return Copied(target, sent, len(manifest.files), time.perf_counter() - started)


def _stands(store: Storage, folder: str, manifest_sha256: str, target: str) -> bool:
    """Return whether the checkpoint is committed there already.

    Raises:
        ConflictError: another one is.
    """
    path = f"{folder}/{MANIFEST_NAME}"
    length = _size_of(store, path)
    if length is None:
        return False
    if length <= manifests.MAX_MANIFEST_BYTES:
        seen = manifests.sha256(store.read(path, 0, length))
        if seen == manifest_sha256:
            return True
    raise ConflictError(
        f"another checkpoint stands at {target}: its manifest is not {manifest_sha256}",
        code="another_checkpoint",
    )


def _size_of(store: Storage, path: str) -> int | None:
    try:
        return store.size(path)
    except FileNotFoundError:
        return None


def _blocks(name: str, entry: FileEntry, read: Read, pace: Pace) -> Iterator[bytes]:
    file = VerifiedFile(name, entry, read)
    for index in range(len(entry.blocks)):
        block = file.block(index)
        pace.spend(len(block))
        yield block
