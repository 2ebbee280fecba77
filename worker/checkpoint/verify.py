"""Verification of a checkpoint where it is stored, through its storage backend. No torch."""

from __future__ import annotations

from trainmaster.errors import UnavailableError
from trainmaster.storage import Storage
from trainmaster.verification import Report, verify
from trainmaster.verified import Read, Size
from worker.storage import open_location


def verify_location(location: str, *, manifest_sha256: str | None = None) -> Report:
    """Check the checkpoint at the URL `location`; see `trainmaster.verification.verify`.

    Raises:
        UserError: it is not a URL that a storage backend is installed for.
        UnavailableError: the store cannot be read now.
    """
    storage, folder = open_location(location)
    try:
        names = [path.removeprefix(f"{folder}/") for path in storage.list(folder)]
    except OSError as error:
        raise UnavailableError(f"{location} cannot be listed now: {error}") from error
    if not names:
        refuse_if_away(storage)
    read, size = readers(storage, folder)
    return verify(
        read=read, size=size, names=lambda: names, folder=folder, manifest_sha256=manifest_sha256
    )


def refuse_if_away(storage: Storage) -> None:
    """Let a store in which something lies pass.

    Where a run has nothing at all, its store is more likely not mounted than its checkpoints lost;
    and each of them would be given up for it.

    Raises:
        UnavailableError: nothing is there, or it cannot be listed now.
    """
    try:
        something = storage.list("")
    except OSError as error:
        raise UnavailableError(f"{storage.url} cannot be listed now: {error}") from error
    if not something:
        raise UnavailableError(
            f"nothing at all is stored at {storage.url}: is the file system mounted?",
            code="storage_away",
        )


def readers(storage: Storage, folder: str) -> tuple[Read, Size]:
    """Return how the files of `folder` are read and measured, by their names within it."""

    def read(name: str, offset: int, length: int) -> bytes:
        return storage.read(f"{folder}/{name}", offset, length)

    def size(name: str) -> int:
        return storage.size(f"{folder}/{name}")

    return read, size
