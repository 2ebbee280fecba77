"""The door to a place where checkpoints are kept. A backend satisfies `Storage` structurally.

Nothing here does I/O. Backends are found by the scheme of their URL through the entry-point group
`trainmaster.storage`; `trainmaster.testing.storage_contract` holds the tests each must pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

from trainmaster.errors import UserError

Buffer: TypeAlias = bytes | bytearray | memoryview
_SEGMENT = re.compile(r"[^/\\\x00-\x1f\x7f]{1,255}")


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

    def delete(self, path: str) -> None:
        """See to it that the object is not there. It need not have been."""
        ...

    def delete_folder(self, path: str) -> None:
        """See to it that neither the folder nor anything in it is there."""
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
