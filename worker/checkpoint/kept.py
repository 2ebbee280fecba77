"""The folders in memory in which the newest states of runs are kept. No torch: the agent looks into
them too.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from trainmaster.checkpoint.manifest import MANIFEST_NAME
from trainmaster.ids import parse_checkpoint_folder


def drop(folder: Path, *, but: str | None = None) -> list[tuple[int, int]]:
    """Remove what is kept of a run, but for one checkpoint's folder; return (generation, step) of
    what was whole. May be repeated, and done by several at once.
    """
    dropped = []
    with suppress(OSError):
        for kept in sorted(folder.iterdir()):
            number = parse_checkpoint_folder(kept.name)
            if number is None or kept.name == but:
                continue
            with suppress(FileNotFoundError):
                (kept / MANIFEST_NAME).unlink()  # first, so that nobody begins to read
                dropped.append(number)
            shutil.rmtree(kept, ignore_errors=True)
    return dropped


def files_in(folder: Path) -> list[str]:
    """Return the names of the files that are whole once the folder's manifest is there."""
    with suppress(OSError):
        return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    return []
