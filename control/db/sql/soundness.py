"""Whether the embedded database's file can be trusted, looked at before anything is done with it.

A file that is damaged somewhere would serve for a while and fail where nobody looks; it is refused
at the start, while the way back is still short.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from trainmaster.errors import UserError

MOST_FINDINGS = 3


class DamagedError(UserError):
    """The file of the embedded database is not whole; the message says what to do about it."""

    code = "database_damaged"


def require_sound(file: Path, *, used_before: bool) -> None:
    """Do nothing if `file` is whole, or is not there yet. Reads it once: about 0.4 s for 1 GiB.

    Args:
        used_before: this state directory had a database, so that an empty one has lost it.

    Raises:
        DamagedError: it is damaged.
    """
    if restoring(file).exists():
        raise DamagedError(
            f"a restore of {file} was interrupted: run `python -m control restore` once more, or "
            f"remove {restoring(file)} to go on with the database as it is"
        )
    if not file.exists():
        return
    if file.stat().st_size == 0:
        if used_before:
            raise DamagedError(_refusal(file, "it is empty"))
        return
    found = findings(file)
    if found:
        raise DamagedError(_refusal(file, "; ".join(found)))


def findings(file: Path) -> list[str]:
    """Return what is wrong with a database file; nothing when it is whole."""
    try:
        with closing(sqlite3.connect(file)) as connection:
            said = connection.execute(f"PRAGMA quick_check({MOST_FINDINGS})").fetchall()
    except sqlite3.OperationalError:
        # No damage: a lock, a disk, a right. Whoever opens it next says which.
        return []
    except sqlite3.DatabaseError as error:
        return [str(error)]
    return [" ".join(str(row[0]).split()) for row in said if row[0] != "ok"]


def restoring(file: Path) -> Path:
    """Return the file that is there while a back-up is being put in the place of `file`."""
    return file.with_name(f"{file.name}.restoring")


def _refusal(file: Path, what: str) -> str:
    return (
        f"the database file {file} is damaged ({what}). Nothing was changed. `python -m control "
        "restore BACKUP` puts a back-up in its place and keeps this file aside; without a back-up, "
        f"move {file} away and start anew (docs/backup.md says what is then lost)"
    )
