"""The door to a place where checkpoints are kept. A backend satisfies `Storage` structurally.

Nothing here does I/O. Backends are found by the scheme of their URL through the entry-point group
`trainmaster.storage`; `trainmaster.testing.storage_contract` holds the tests each must pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias, runtime_checkable
from urllib.parse import SplitResult, unquote, urlsplit

from trainmaster.errors import UserError

MEMORY_SCHEME = "memory:"
"""Begins the location of what is kept in the memory of nodes alone, and has no store."""

Buffer: TypeAlias = bytes | bytearray | memoryview
_SEGMENT = re.compile(r"[^/\\\x00-\x1f\x7f]{1,255}")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,30}")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_NOT_STORES = {"http", "https", "ftp", "ssh"}
_OF_THE_KERNEL = {"proc", "sys"}


class Storage(Protocol):
    """Files by path below a root. Paths are relative, with "/" between their segments.

    An object is there whole or not at all: nobody ever reads half of one, whatever dies when.
    Methods raise `UserError` for a path that could leave the root, FileNotFoundError where what is
    to be read is not there, `ConflictError` where said, and another OSError or `UnavailableError`
    when the store does not do its part. All may be called from several processes at once.
    """

    @property
    def url(self) -> str:
        """The root, without a slash at its end."""
        ...

    def put(self, path: str, chunks: Iterable[Buffer]) -> int:
        """Store the chunks as one object, durable on return, in place of any before it.

        Returns the number of bytes. A chunk is not used after the next one is asked for. When
        `chunks` raises, nothing is stored and the error goes on.
        """
        ...

    def create(self, path: str, data: Buffer) -> None:
        """Store an object, durable on return, that was not there before.

        Of any number of callers at once exactly one succeeds.

        Raises:
            ConflictError: it is there already.
        """
        ...

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset`, fewer only at the object's end."""
        ...

    def size(self, path: str) -> int:
        """Return the number of bytes."""
        ...

    def list(self, prefix: str) -> Sequence[str]:
        """Return the paths of all objects in the folder `prefix` and below, sorted; "" is the root.

        Objects still being written are not among them. A folder that is not there has none.
        """
        ...

    def folders(self) -> Sequence[str]:
        """Return the names of the folders directly in the root, sorted; those in which nothing
        whole lies may be among them.
        """
        ...

    def delete(self, path: str) -> None:
        """See to it that the object is not there. It need not have been."""
        ...

    def delete_folder(self, path: str) -> None:
        """See to it that neither the folder nor anything in it is there."""
        ...


@runtime_checkable
class ReadsInto(Protocol):
    """A `Storage` that can read into memory that is there already."""

    def read_into(
        self,
        path: str,
        offset: int,
        buffers: Sequence[memoryview],
        seen: Callable[[memoryview], object],
    ) -> int:
        """Fill the buffers in turn with what is stored from `offset`; return the number of bytes,
        fewer than fit only at the object's end.

        Args:
            seen: called with each piece in order, soon after it has come, so that who looks at it
                finds it in the processor's cache.
        """
        ...


Opener: TypeAlias = Callable[[str], Storage]
"""A backend's entry point: takes the URL, raises `UserError` if it is not one of its own."""


def path_problem(path: str) -> str | None:
    """Return why `path` cannot be an object's path, or None if it can."""
    if any(_SEGMENT.fullmatch(segment) is None for segment in path.split("/")):
        return "has an empty or unprintable segment, or a backslash"
    if any(segment in {".", ".."} for segment in path.split("/")):
        return "leaves its folder"
    return None


def check_path(path: str) -> None:
    """Let a good path pass.

    Raises:
        UserError: `path_problem` found one.
    """
    problem = path_problem(path)
    if problem is not None:
        raise UserError(f"the path {path!r} {problem}", code="bad_path")


def url_problem(url: str) -> str | None:
    """Return why `url` cannot be a store's, as the end of a sentence that says what to write
    instead, or None if it can.

    Credentials never stand in a URL: it is stored and shown.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        return f"is no URL: {error}"
    if "://" not in url or _SCHEME.fullmatch(parts.scheme) is None or not url.isprintable():
        return "is no URL of a store: write default, file:///absolute/folder or s3://bucket/prefix"
    if parts.scheme in _NOT_STORES:
        return f"is no store: checkpoints are not kept behind {parts.scheme}://"
    if "@" in parts.netloc or parts.query or parts.fragment:
        return (
            "may hold neither a user nor anything after ? or #: give credentials to the agents, in "
            "their environment"
        )
    if parts.scheme == "file":
        return _folder_problem(parts)
    if parts.scheme == "s3":
        return _bucket_problem(parts)
    return None


def _folder_problem(parts: SplitResult) -> str | None:
    path = unquote(parts.path)
    if parts.netloc not in {"", "localhost"}:
        return f"names the host {parts.netloc}: a folder is written file:///absolute/folder"
    if "\0" in path or ".." in path.split("/") or not path.strip("/"):
        return "must name an absolute folder other than /: file:///absolute/folder"
    first = next(each for each in path.split("/") if each not in {"", "."})
    if first in _OF_THE_KERNEL:
        return f"lies in /{first}, where the kernel keeps its own: nothing can be stored there"
    return None


def _bucket_problem(parts: SplitResult) -> str | None:
    if _BUCKET.fullmatch(parts.netloc) is None:
        return f"names no bucket that can be ({parts.netloc!r}): write s3://bucket/prefix"
    prefix = parts.path.removeprefix("/").rstrip("/")
    problem = path_problem(prefix) if prefix else None
    return f"has a prefix that {problem}" if problem else None


def without_secrets(url: str) -> str:
    """Return `url` fit to be shown: without a user, a query and a fragment."""
    head = url.partition("?")[0].partition("#")[0]
    scheme, separator, rest = head.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"
