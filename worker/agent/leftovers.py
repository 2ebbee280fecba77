"""What attempts leave behind in a node's folder, and for how long it is kept."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

LOG_RETENTION_S = 7 * 24 * 3600.0
_LOG = ".log"


def changed_at(path: Path) -> float:
    """Return when a file changed last, in seconds of the epoch; 0 if it cannot be asked."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def remove_all_but_logs(attempt: Path) -> None:
    """Remove what the ranks of an attempt needed; its logs are what people ask for afterwards."""
    for path in attempt.iterdir():
        if path.suffix != _LOG:
            path.unlink(missing_ok=True)


def remove_old_logs(attempts: Path, now: float) -> None:
    """Remove the attempts in which only logs are left, once all of those are old."""
    before = now - LOG_RETENTION_S
    for folder in attempts.glob("*/g*"):
        files = list(folder.iterdir())
        if all(path.suffix == _LOG and changed_at(path) < before for path in files):
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                folder.parent.rmdir()
