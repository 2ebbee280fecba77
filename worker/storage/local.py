"""Checkpoints in a folder of this machine, or of a network file system mounted here.

An object is written under a hidden name beside its own, synced, and then renamed (`put`) or linked
(`create`) to its name; then the folder is synced. Nothing is ever renamed across file systems.

Crash: a reader sees the object whole or not at all; a hidden leftover stays until the folder goes.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from trainmaster.errors import ConflictError, UserError
from trainmaster.storage import Buffer, check_path
from worker.storage.appending import Appender

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO in the place of a file must not block
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_UNFINISHED = ".unfinished"
_LISTED_LEVELS = 8  # nothing of ours lies as deep; what others put there must not end a listing
_PIECE_BYTES = 1 << 18  # fits into a processor's own cache


def open_local(url: str) -> LocalStorage:
    """Return the storage at a URL of the form file:///absolute/path.

    Raises:
        UserError: it is not of that form.
    """
    parts = urlsplit(url)
    path = Path(unquote(parts.path))
    if parts.scheme != "file" or parts.netloc not in {"", "localhost"} or parts.query:
        raise UserError(f"{url!r} is not of the form file:///absolute/path", code="bad_storage_url")
    if not path.is_absolute() or ".." in path.parts or "\0" in str(path) or path == Path("/"):
        raise UserError(
            f"{url!r} must name an absolute folder other than /", code="bad_storage_url"
        )
    return LocalStorage(path)


class LocalStorage:
    """`trainmaster.storage.Storage` in a folder. Links that lead out of the folder are refused."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def url(self) -> str:
        return self._root.as_uri()

    def put(self, path: str, chunks: Iterable[Buffer]) -> int:
        target = self._writable(path)
        with _written(target, chunks) as (unfinished, num_bytes):
            unfinished.replace(target)
        _sync_folder(target.parent)
        return num_bytes

    def create(self, path: str, data: Buffer) -> None:
        target = self._writable(path)
        with _written(target, [data]) as (unfinished, _):
            try:
                os.link(unfinished, target)
            except FileExistsError as error:
                raise ConflictError(
                    f"{self.url}/{path} is there already", code="already_exists"
                ) from error
        try:
            _sync_folder(target.parent)
        except OSError:
            # The caller is told that it failed, so nobody may find it.
            target.unlink(missing_ok=True)
            raise

    def read(self, path: str, offset: int, length: int) -> bytes:
        descriptor = os.open(self._inside(path), _READ)
        try:
            data = os.pread(descriptor, length, offset)
            while 0 < len(data) < length:  # the kernel moves at most 2 GiB at once
                more = os.pread(descriptor, length - len(data), offset + len(data))
                if not more:
                    break
                data += more
            return data
        finally:
            os.close(descriptor)

    def read_into(
        self,
        path: str,
        offset: int,
        buffers: Sequence[memoryview],
        seen: Callable[[memoryview], object],
    ) -> int:
        descriptor = os.open(self._inside(path), _READ)
        try:
            # The disk works on what comes next while `seen` looks at what has come.
            with suppress(OSError):
                length = sum(map(len, buffers))
                os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_WILLNEED)
            done = 0
            for piece in _pieces(buffers):
                count = 0
                while count < len(piece):
                    more = os.preadv(descriptor, [piece[count:]], offset + done + count)
                    if more == 0:
                        break
                    count += more
                seen(piece[:count])
                done += count
                if count < len(piece):
                    break
            return done
        finally:
            os.close(descriptor)

    def size(self, path: str) -> int:
        return self._inside(path).stat().st_size

    def list(self, prefix: str) -> list[str]:
        folder = self._inside(prefix) if prefix else self._root
        return sorted(file.relative_to(self._root).as_posix() for file in _files_below(folder))

    def folders(self) -> Sequence[str]:
        try:
            with os.scandir(self._root) as entries:
                return sorted(each.name for each in entries if each.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            return []

    def delete(self, path: str) -> None:
        target = self._inside(path)
        with suppress(FileNotFoundError, NotADirectoryError):
            target.unlink()
            _sync_folder(target.parent)

    def delete_folder(self, path: str) -> None:
        folder = self._inside(path)
        with suppress(FileNotFoundError):
            _delete_tree(folder)
            _sync_folder(folder.parent)

    def _inside(self, path: str) -> Path:
        check_path(path)
        target = self._root / path
        root = _real(self._root)
        if not _real(target.parent).is_relative_to(root) or (
            target.is_symlink() and not _real(target).is_relative_to(root)
        ):
            raise UserError(f"the path {path!r} leads out of {self.url}", code="bad_path")
        return target

    def _writable(self, path: str) -> Path:
        target = self._inside(path)
        if target.name.endswith(_UNFINISHED):
            raise UserError(f"the path {path!r} ends in {_UNFINISHED}", code="bad_path")
        _make_folder(target.parent)
        return target


def _pieces(buffers: Sequence[memoryview]) -> Iterator[memoryview]:
    for buffer in buffers:
        for start in range(0, len(buffer), _PIECE_BYTES):
            yield buffer[start : start + _PIECE_BYTES]


@contextmanager
def _written(target: Path, chunks: Iterable[Buffer]) -> Iterator[tuple[Path, int]]:
    """Write and sync a hidden file beside `target`; it is gone afterwards, unless renamed."""
    unfinished = target.with_name(f".{target.name[:200]}.{secrets.token_hex(8)}{_UNFINISHED}")
    descriptor = os.open(unfinished, _WRITE, 0o644)
    try:
        try:
            file = Appender(descriptor)
            for chunk in chunks:
                file.append(chunk)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        yield unfinished, file.num_bytes
    finally:
        with suppress(OSError):  # the first error is the one to tell
            unfinished.unlink(missing_ok=True)


def _real(path: Path) -> Path:
    """Return where links lead; of those that lead in a circle, where that begins."""
    return Path(os.path.realpath(path))


def _make_folder(folder: Path) -> None:
    """Create the folder and those above it, each durable in the one above."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _files_below(folder: Path, levels: int = _LISTED_LEVELS) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            found = list(entries)
    except FileNotFoundError:
        return
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            if levels > 1:
                yield from _files_below(Path(entry.path), levels - 1)
        elif not (entry.name.startswith(".") and entry.name.endswith(_UNFINISHED)):
            yield Path(entry.path)


def _delete_tree(folder: Path) -> None:
    """Delete what is in the folder and the folder. Links are deleted, never followed."""
    if not stat.S_ISDIR(folder.lstat().st_mode):
        raise NotADirectoryError(f"{folder} is not a folder")
    with os.scandir(folder) as entries:
        found = list(entries)
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            _delete_tree(Path(entry.path))
        else:
            with suppress(FileNotFoundError):  # another deleter was faster
                Path(entry.path).unlink()
    folder.rmdir()
