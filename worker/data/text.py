"""Text as bytes: a corpus becomes one flat file, once per machine, and is memory-mapped from then
on.

The cache holds `NAME.bytes`, named by the SHA-256 of its content, and `KEY.json`, which says for a
listing of source files (paths, sizes, times of change) which content they make. Both appear by
rename, the index last: whoever comes at the same time does the work twice and ends with the same
files.
"""

from __future__ import annotations

import hashlib
import json
import os
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainmaster.errors import Problem, SpecError

STDLIB = "text:stdlib"
_SKIPPED_FOLDERS = frozenset({"__pycache__", "site-packages", "dist-packages"})


@dataclass(frozen=True, slots=True)
class Corpus:
    """A tokenised text: one byte per token."""

    tokens: NDArray[np.uint8]
    sha256: str


def open_corpus(source: str, *, cache_folder: Path) -> Corpus:
    """Return the corpus of `text:stdlib`, `text:PATH` (a file, or all files of a folder) or
    `tokens:PATH` (raw bytes, used in place).

    Raises:
        SpecError: it cannot be read, or holds no text.
    """
    kind, _, where = source.partition(":")
    try:
        if kind == "tokens":
            path = Path(where)
            return Corpus(_map(path, source), _digest_of(path))
        root, files = _files(source)
        return _from_cache(root, files, source, cache_folder)
    except OSError as error:
        name = error.filename or where
        raise _problem(source, f"{name} cannot be read: {error.strerror or error}") from error


def _files(source: str) -> tuple[Path, list[Path]]:
    """Return the root of a text source and its files, sorted by path relative to it."""
    if source == STDLIB:
        root = Path(sysconfig.get_paths()["stdlib"])
        found = [path for path in _walk(root) if path.suffix == ".py"]
    else:
        root = Path(source.partition(":")[2])
        if root.is_file():
            return root.parent, [root]
        if not root.is_dir():
            raise _problem(source, f"{root} is neither a file nor a folder on this node")
        found = list(_walk(root))
    files = sorted(found, key=lambda path: path.relative_to(root).as_posix().encode())
    if not files:
        raise _problem(source, f"{root} holds no files")
    return root, files


def _walk(folder: Path) -> Iterator[Path]:
    def fail(error: OSError) -> None:
        raise error

    for parent, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [
            name for name in folders if name not in _SKIPPED_FOLDERS and not name.startswith(".")
        ]
        for name in names:
            path = Path(parent, name)
            if not name.startswith(".") and path.is_file():
                yield path


def _from_cache(root: Path, files: list[Path], source: str, cache_folder: Path) -> Corpus:
    folder = cache_folder / "corpora"
    folder.mkdir(parents=True, exist_ok=True)
    index = folder / f"{_listing_key(root, files)}.json"
    known = _known(index)
    if known is None:
        known = _write(files, folder)
        _replace(index, json.dumps({"sha256": known, "files": len(files)}).encode())
    return Corpus(_map(folder / f"{known}.bytes", source), known)


def _listing_key(root: Path, files: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        facts = path.stat()
        line = (path.relative_to(root).as_posix(), facts.st_size, facts.st_mtime_ns)
        digest.update(repr(line).encode())
    return digest.hexdigest()[:32]


def _known(index: Path) -> str | None:
    """Return the content that an index names, if it is still there whole enough to be mapped."""
    try:
        sha256 = str(json.loads(index.read_bytes())["sha256"])
    except (FileNotFoundError, ValueError, KeyError):
        return None
    return sha256 if (index.parent / f"{sha256}.bytes").is_file() else None


def _write(files: list[Path], folder: Path) -> str:
    digest = hashlib.sha256()
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".tmp", delete=False) as out:
        try:
            for path in files:
                data = path.read_bytes()
                digest.update(data)
                out.write(data)
            out.flush()
            os.fsync(out.fileno())
            Path(out.name).replace(folder / f"{digest.hexdigest()}.bytes")
        except BaseException:
            Path(out.name).unlink(missing_ok=True)
            raise
    return digest.hexdigest()


def _replace(path: Path, data: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as out:
        out.write(data)
    Path(out.name).replace(path)


def _map(path: Path, source: str) -> NDArray[np.uint8]:
    if path.stat().st_size == 0:
        raise _problem(source, "holds no text: all its files are empty")
    return np.memmap(path, dtype=np.uint8, mode="r")


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _problem(source: str, message: str) -> SpecError:
    return SpecError([Problem("data.source", f"{source}: {message}")])
