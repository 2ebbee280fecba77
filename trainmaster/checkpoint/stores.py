"""Stores by URL: the backend for its scheme, a checkpoint's folder in it, and how it is verified.

Backends are found by entry point; the two that come with the worker, by import path, so that
neither is imported before a URL asks for it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from trainmaster.checkpoint.verification import Report, verify
from trainmaster.checkpoint.verified import Read, ReadInto, Size
from trainmaster.checkpoint.weights import Source, Weights
from trainmaster.errors import IntegrityError, UnavailableError, UserError
from trainmaster.storage import (
    MEMORY_SCHEME,
    Opener,
    ReadsInto,
    Storage,
    url_problem,
    without_secrets,
)

Spend: TypeAlias = Callable[[int], None]

ENTRY_POINT_GROUP: Final = "trainmaster.storage"
_BUILT_IN: Final = {
    "file": "worker.storage.local:open_local",
    "s3": "worker.storage.s3:open_s3",
}
_EXTRAS: Final = {"s3": "s3"}


def open_storage(url: str, installed: Iterable[EntryPoint] | None = None) -> Storage:
    """Return the store at `url`. Nothing is created or contacted yet.

    Args:
        installed: the backends of third parties; those of this environment when not given.

    Raises:
        UserError: no backend is installed for its scheme, or the backend refuses the rest of it.
    """
    problem = url_problem(url)
    if problem is not None:
        raise UserError(f"{without_secrets(url)!r} {problem}", code="bad_storage_url")
    scheme = urlsplit(url).scheme
    if url.startswith(MEMORY_SCHEME):
        raise UserError(
            f"{url!r} is kept in the memory of nodes: the ranks that restore it verify it, and "
            "nobody else reads it",
            code="kept_in_memory",
        )
    return _opener(scheme, url, installed)(url)


def _opener(scheme: str, url: str, installed: Iterable[EntryPoint] | None) -> Opener:
    if scheme in _BUILT_IN:
        path = _BUILT_IN[scheme]
    else:
        found = entry_points(group=ENTRY_POINT_GROUP) if installed is None else installed
        paths = {entry.name: entry.value for entry in found}
        if scheme not in paths:
            known = ", ".join(sorted({*_BUILT_IN, *paths}))
            raise UserError(
                f"{url!r} begins with no scheme that a storage backend is installed for here "
                f"({known}); a folder is written file:///absolute/folder",
                code="bad_storage_url",
            )
        path = paths[scheme]
    module, _, attribute = path.partition(":")
    try:
        opener: Opener = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, SyntaxError) as error:
        mend = f": install trainmaster[{_EXTRAS[scheme]}]" if scheme in _EXTRAS else ""
        raise UserError(
            f"the storage backend for {scheme}:// ({path}) cannot be loaded: {error}{mend}",
            code="bad_plugin",
        ) from error
    return opener


def open_location(location: str) -> tuple[Storage, str]:
    """Return the store around a checkpoint's folder, and the folder's name in it.

    Raises:
        UserError: see `open_storage`; or the URL names no folder.
    """
    root, _, folder = location.rstrip("/").rpartition("/")
    if not folder or root.endswith(("/", ":")):
        raise UserError(
            f"{without_secrets(location)!r} is not the URL of a checkpoint's folder",
            code="bad_path",
        )
    return open_storage(root), folder


def folder_below(storage: Storage, location: str) -> str | None:
    """Return the path of `location` within `storage`, or None if it does not lie there."""
    location, root = location.rstrip("/"), storage.url + "/"
    return location.removeprefix(root) if location.startswith(root) else None


def verify_location(
    location: str, *, manifest_sha256: str | None = None, spend: Spend | None = None
) -> Report:
    """Check the checkpoint at the URL `location`; see `trainmaster.checkpoint.verification.verify`.

    Args:
        spend: called with the bytes of each reading before it, to wait for its turn.

    Raises:
        UserError: it is not a URL that a storage backend is installed for.
        UnavailableError: the store cannot be read now.
    """
    storage, folder = open_location(location)
    return verify_stored(storage, folder, manifest_sha256=manifest_sha256, spend=spend)


def verify_stored(
    storage: Storage,
    folder: str,
    *,
    manifest_sha256: str | None = None,
    spend: Spend | None = None,
) -> Report:
    """Check the checkpoint in `folder` of `storage`; see `verify_location`."""
    try:
        names = [path.removeprefix(f"{folder}/") for path in storage.list(folder)]
    except OSError as error:
        raise UnavailableError(f"{storage.url}/{folder} cannot be listed now: {error}") from error
    if not names:
        refuse_if_away(storage)
    read, size = readers(storage, folder)

    def paced(name: str, offset: int, length: int) -> bytes:
        if spend is not None:
            spend(length)
        return read(name, offset, length)

    return verify(
        read=paced, size=size, names=lambda: names, folder=folder, manifest_sha256=manifest_sha256
    )


def weights_at(location: str, *, manifest_sha256: str | None = None) -> Weights:
    """Return the weights of the checkpoint at the URL `location`, its manifest and state read.

    Raises:
        IntegrityError: they are missing, damaged, or another than expected.
        UnavailableError: they cannot be read now.
        UserError: not a URL that a storage backend is installed for, or there are no weights in it.
    """
    storage, folder = open_location(location)
    read, size = readers(storage, folder)
    return Weights(Source(read, size, folder, manifest_sha256))


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
    """Return how the files of `folder` are read and measured, by their names within it.

    A name that the store does not follow, such as that of a link out of it, is damage.
    """

    def read(name: str, offset: int, length: int) -> bytes:
        try:
            return storage.read(f"{folder}/{name}", offset, length)
        except UserError as error:
            raise _not_followed(name, error) from error

    def size(name: str) -> int:
        try:
            return storage.size(f"{folder}/{name}")
        except UserError as error:
            raise _not_followed(name, error) from error

    return read, size


def reader_into(storage: Storage, folder: str) -> ReadInto:
    """Return how the files of `folder` are read into memory that is there already."""
    if isinstance(storage, ReadsInto):
        direct = storage

        def read_direct(
            name: str,
            offset: int,
            buffers: Sequence[memoryview],
            seen: Callable[[memoryview], object],
        ) -> int:
            try:
                return direct.read_into(f"{folder}/{name}", offset, buffers, seen)
            except UserError as error:
                raise _not_followed(name, error) from error

        return read_direct
    read, _ = readers(storage, folder)

    def read_and_copy(
        name: str,
        offset: int,
        buffers: Sequence[memoryview],
        seen: Callable[[memoryview], object],
    ) -> int:
        data = memoryview(read(name, offset, sum(map(len, buffers))))
        at = 0
        for buffer in buffers:
            piece = data[at : at + len(buffer)]
            buffer[: len(piece)] = piece
            seen(buffer[: len(piece)])
            at += len(piece)
        return at

    return read_and_copy


def _not_followed(name: str, error: UserError) -> IntegrityError:
    return IntegrityError(
        f"{name}: cannot be read: {error.message}", file=name, expected="a file", seen="a link"
    )
