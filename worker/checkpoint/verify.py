"""Verification of a checkpoint where it is stored, through its storage backend. No torch."""

from __future__ import annotations

from trainmaster.errors import NotFoundError, UnavailableError
from trainmaster.storage import Storage
from trainmaster.verification import Report, verify
from trainmaster.verified import Read, Size
from worker.storage import open_location


def verify_location(location: str, *, manifest_sha256: str | None = None) -> Report:
    """Check the checkpoint at the URL `location`; see `trainmaster.verification.verify`.

    Raises:
        NotFoundError: nothing is there.
        UserError: it is not a URL that a storage backend is installed for.
        UnavailableError: the store cannot be read now.
    """
    storage, folder = open_location(location)
    try:
        names = [path.removeprefix(f"{folder}/") for path in storage.list(folder)]
    except OSError as error:
        raise UnavailableError(f"{location} cannot be listed now: {error}") from error
    if not names:
        raise NotFoundError(f"nothing is stored at {location}")
    read, size = readers(storage, folder)
    return verify(
        read=read, size=size, names=lambda: names, folder=folder, manifest_sha256=manifest_sha256
    )


def readers(storage: Storage, folder: str) -> tuple[Read, Size]:
    """Return how the files of `folder` are read and measured, by their names within it."""

    def read(name: str, offset: int, length: int) -> bytes:
        return storage.read(f"{folder}/{name}", offset, length)

    def size(name: str) -> int:
        return storage.size(f"{folder}/{name}")

    return read, size
