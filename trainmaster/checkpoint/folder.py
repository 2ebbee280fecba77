"""Verification of a checkpoint in a folder of this machine.

Reads files; the judgement is in `verification`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote, urlsplit

from trainmaster.checkpoint.verification import Report, verify
from trainmaster.errors import IntegrityError, NotFoundError, UnavailableError, UserError

MAX_LISTED_FOLDERS = 100_000
LISTED_LEVELS = 8
"""How deep a listing goes: nothing of ours lies as deep, and what others put there ends none."""
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO in the place of a file must not block


def local_path(location: str) -> Path:
    """Return the folder that `location` names: a file:// URL or a plain path.

    Raises:
        UserError: it is the URL of something that is not a folder of this machine.
    """
    if "://" not in location:
        return Path(location)
    parts = urlsplit(location)
    path = unquote(parts.path)
    if parts.scheme != "file" or parts.netloc not in {"", "localhost"} or "\0" in path:
        raise UserError(f"{location!r} is not a folder of this machine (file:///absolute/path)")
    return Path(path)


def verify_folder(path: Path, *, manifest_sha256: str | None = None) -> Report:
    """Check the checkpoint in the folder `path`; see `verification.verify`.

    Raises:
        NotFoundError: there is no such folder.
        UnavailableError: the folder or a file in it cannot be read now.
    """
    if not path.is_dir():
        raise NotFoundError(f"{path} is not a folder")

    def read(name: str, offset: int, length: int) -> bytes:
        descriptor = os.open(_inside(path, name), _READ)
        try:
            return os.pread(descriptor, length, offset)
        finally:
            os.close(descriptor)

    with ThreadPoolExecutor(1, thread_name_prefix="verify") as thread:
        return verify(
            read=read,
            size=lambda name: _inside(path, name).stat().st_size,
            names=lambda: _names(path),
            folder=path.resolve().name,
            manifest_sha256=manifest_sha256,
            executor=thread,
        )


def _inside(path: Path, name: str) -> Path:
    """Return the file's path. Links may lead to other checkpoints of the run, and no further: a
    restore would not follow them either.

    Raises:
        IntegrityError: a link that leads elsewhere.
    """
    file = path / name
    if file.is_symlink():
        target = file.readlink() if file.readlink().is_absolute() else path / file.readlink()
        if not Path(os.path.realpath(target)).is_relative_to(path.resolve().parent):
            raise IntegrityError(
                f"{name}: cannot be read: it is a link to {target}",
                file=name,
                expected="a file",
                seen="a link",
            )
    return file


def _names(path: Path) -> Iterator[str]:
    """Yield the files below `path`, not following links to folders."""
    for count, (parent, folders, files) in enumerate(os.walk(path, onerror=_refuse)):
        if count > MAX_LISTED_FOLDERS:
            return
        if len(Path(parent).relative_to(path).parts) >= LISTED_LEVELS:
            folders.clear()
        for name in files:
            yield (Path(parent) / name).relative_to(path).as_posix()


def _refuse(error: OSError) -> None:
    raise UnavailableError(f"{error.filename} cannot be read: {error.strerror}") from error
