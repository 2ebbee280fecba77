"""One digest of the code that a workload is made of: the same on all ranks that have the same."""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_OURS: Final = ("trainmaster", "worker")
"""Packages that hold this runtime beside built-in workloads."""


def code_sha256(path: str) -> str:
    """Digest the source of a workload, by its import path (`module:attribute`).

    That is every module of its top-level package, imported or not: ranks of different stages import
    different ones. Of a module outside any package, and of a built-in workload, it is the module.
    """
    name = path.partition(":")[0]
    module = importlib.import_module(name)
    top = name.partition(".")[0]
    folders = getattr(importlib.import_module(top), "__path__", ())
    if top in _OURS or not folders:
        source = inspect.getsourcefile(module)
        return hashlib.sha256(Path(source).read_bytes() if source else b"").hexdigest()
    return _sha256_of_folders([Path(folder) for folder in folders])


def _sha256_of_folders(folders: list[Path]) -> str:
    """Digest names and contents of all modules below some folders, wherever these lie."""
    sources = {
        file.relative_to(folder).as_posix(): file for folder in folders for file in _modules(folder)
    }
    digest = hashlib.sha256()
    for name, file in sorted(sources.items()):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        digest.update(f"{name}\0{content}\0".encode())
    return digest.hexdigest()


def _modules(folder: Path) -> Iterator[Path]:
    """Yield what can be imported from a folder; a hidden folder in it (`.venv`) cannot."""
    for file in folder.rglob("*.py"):
        if not any(part.startswith(".") for part in file.relative_to(folder).parts):
            yield file
