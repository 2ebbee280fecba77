"""Storages for tests: one in memory, and one that fails when it is told to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

from trainmaster.errors import ConflictError
from trainmaster.storage import Buffer, Storage, check_path


class MemoryStorage:
    """Objects in a dict. Openings that share `objects` are the same store."""

    def __init__(self, objects: dict[str, bytes] | None = None) -> None:
        self.objects = {} if objects is None else objects
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return "memory://store"

    def put(self, path: str, chunks: Iterable[Buffer]) -> int:
        check_path(path)
        data = b"".join(bytes(chunk) for chunk in chunks)
        self.objects[path] = data
        return len(data)

    def create(self, path: str, data: Buffer) -> None:
        check_path(path)
        if self.objects.setdefault(path, kept := bytes(data)) is not kept:
            raise ConflictError(f"{path} is there already")

    def read(self, path: str, offset: int, length: int) -> bytes:
        check_path(path)
        return self._get(path)[offset : offset + length]

    def size(self, path: str) -> int:
        check_path(path)
        return len(self._get(path))

    def list(self, prefix: str) -> list[str]:
        if prefix:
            check_path(prefix)
        return sorted(path for path in self.objects if not prefix or path.startswith(f"{prefix}/"))

    def folders(self) -> Sequence[str]:
        return sorted({path.partition("/")[0] for path in self.objects if "/" in path})

    def delete(self, path: str) -> None:
        check_path(path)
        self.objects.pop(path, None)

    def delete_folder(self, path: str) -> None:
        check_path(path)
        for inside in self.list(path):
            self.delete(inside)

    def _get(self, path: str) -> bytes:
        try:
            return self.objects[path]
        except KeyError as error:
            raise FileNotFoundError(path) from error


def open_memory(url: str) -> MemoryStorage:
    """A backend's entry point, as a third party would bring it."""
    assert url == "lake://store"
    return MemoryStorage()


class HauntedStorage:
    """Passes all on to another storage, calling `before` ahead of each operation and each chunk.

    What `before` raises is what the operation does instead.
    """

    def __init__(self, storage: Storage, before: Callable[[str, str], None]) -> None:
        self._storage = storage
        self._before = before

    @property
    def url(self) -> str:
        return self._storage.url

    def put(self, path: str, chunks: Iterable[Buffer]) -> int:
        def watched() -> Iterator[Buffer]:
            for chunk in chunks:
                self._before("chunk", path)
                yield chunk

        self._before("put", path)
        num_bytes = self._storage.put(path, watched())
        self._before("after put", path)
        return num_bytes

    def create(self, path: str, data: Buffer) -> None:
        self._before("create", path)
        self._storage.create(path, data)
        self._before("after create", path)

    def read(self, path: str, offset: int, length: int) -> bytes:
        self._before("read", path)
        return self._storage.read(path, offset, length)

    def size(self, path: str) -> int:
        self._before("size", path)
        return self._storage.size(path)

    def list(self, prefix: str) -> list[str]:
        self._before("list", prefix)
        return list(self._storage.list(prefix))

    def folders(self) -> Sequence[str]:
        self._before("folders", "")
        return self._storage.folders()

    def delete(self, path: str) -> None:
        self._before("delete", path)
        self._storage.delete(path)

    def delete_folder(self, path: str) -> None:
        self._before("delete_folder", path)
        self._storage.delete_folder(path)
