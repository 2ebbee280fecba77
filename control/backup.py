"""Back-ups of the embedded database: taken while the control plane works, put back while it does
not.

A back-up is one file, whole and checked, of one moment. What happened after that moment comes again
from the nodes: each stream goes on from the cursor that the database names, and that went back with
it.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from control.clock import Clock
from control.db import restored
from control.db.sql import schema, soundness
from control.db.sql.engine import Database
from control.serving import sole_use, sqlite_file
from control.settings import Settings
from trainmaster.errors import UserError

log = logging.getLogger(__name__)

COPY_WAITS_S = 30.0


class BackupError(UserError):
    """A back-up cannot be taken, or this one cannot be put back."""

    code = "backup"


def back_up(settings: Settings, out: Path) -> int:
    """Write a back-up of the embedded database to `out`; return its size in bytes.

    The control plane may be at work meanwhile; nobody waits. `out` appears when it is whole.

    Raises:
        BackupError: there is no such database, `out` is there already, or cannot be written.
    """
    database = _embedded(settings)
    if not database.exists():
        raise BackupError(f"there is no database at {database}: nothing to back up")
    if out.exists():
        raise BackupError(f"{out} is there already: name another file, or move it away")
    with _arriving(out) as arriving:
        _copy(database, arriving)
        found = soundness.findings(arriving)
        if found:
            raise BackupError(
                f"the database file {database} is damaged ({'; '.join(found)}), and so would its "
                "back-up be: use an earlier one (docs/backup.md)"
            )
    return out.stat().st_size


def restore(settings: Settings, source: Path, clock: Clock) -> Path | None:
    """Put a back-up in the place of the embedded database; return where the old file was put.

    Raises:
        BackupError: `source` is no back-up that this version can use.
        HeldError: a control plane uses the state directory.
    """
    database = _embedded(settings)
    if not source.is_file():
        raise BackupError(f"there is no file {source}")
    settings.home.prepare()
    with sole_use(settings):
        database.parent.mkdir(parents=True, exist_ok=True)
        coming = soundness.restoring(database)
        coming.unlink(missing_ok=True)
        found = soundness.findings(source)
        if found:
            raise BackupError(f"{source} is damaged: {'; '.join(found)}")
        try:
            _copy(source, coming)
            _prepare(coming, source, clock)
        except BaseException:
            coming.unlink(missing_ok=True)
            raise
        aside = _put_aside(database, clock)
        coming.replace(database)
        _sync_folder(database.parent)
    return aside


def note_restored(settings: Settings, clock: Clock) -> int:
    """Tell a PostgreSQL database that it was restored from a back-up; return the number of its
    runs.

    Raises:
        BackupError: the database is the embedded one.
    """
    if sqlite_file(settings.database) is not None:
        raise BackupError(
            "a database on SQLite is told by `python -m control restore FILE`; this is for "
            "PostgreSQL, after pg_restore"
        )
    db = Database(settings.database)
    try:
        schema.upgrade(db)
        with db.write() as connection:
            return restored.note(connection, "PostgreSQL's own back-up", now=clock.now())
    finally:
        db.close()


def _embedded(settings: Settings) -> Path:
    file = sqlite_file(settings.database)
    if file is None:
        raise BackupError(
            "TRAINMASTER_DATABASE_URL names a PostgreSQL, which has its own back-ups: use pg_dump "
            "and pg_restore as docs/backup.md says"
        )
    return file


def _prepare(coming: Path, source: Path, clock: Clock) -> None:
    db = Database(f"sqlite:///{coming}")
    try:
        with db.read() as connection:
            if schema.revision(connection) is None:
                raise BackupError(f"{source} is no database of Trainmaster")
        schema.upgrade(db)
        taken = datetime.fromtimestamp(source.stat().st_mtime, UTC)
        with db.write() as connection:
            restored.note(
                connection, f"{source.name} of {taken:%Y-%m-%d %H:%M:%S} UTC", now=clock.now()
            )
    finally:
        db.close()
    _as_one_file(coming)


def _put_aside(database: Path, clock: Clock) -> Path | None:
    """Keep the old file under another name, its log of late writes beside it."""
    if not database.exists():
        return None
    aside = database.with_name(f"{database.name}.before-{clock.now():%Y%m%dT%H%M%SZ}")
    number = 1
    while aside.exists():
        number += 1
        aside = database.with_name(f"{database.name}.before-{clock.now():%Y%m%dT%H%M%SZ}-{number}")
    os.link(database, aside)
    # The log belongs to the old file; the new one would take it for its own.
    for suffix in ("-wal", "-shm"):
        late = database.with_name(database.name + suffix)
        if late.exists():
            late.replace(aside.with_name(aside.name + suffix))
    return aside


def _copy(source: Path, target: Path) -> None:
    """Copy a database in one step of one moment, as a single file that is on the disk."""
    target.touch(mode=0o600)
    try:
        with (
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as old,
            closing(sqlite3.connect(target)) as new,
        ):
            old.execute(f"PRAGMA busy_timeout={int(COPY_WAITS_S * 1000)}")
            old.backup(new)
        _as_one_file(target)
    except sqlite3.Error as error:
        raise BackupError(f"cannot copy {source} to {target}: {error}") from error


def _as_one_file(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


@contextmanager
def _arriving(out: Path) -> Iterator[Path]:
    """Yield a file beside `out` that takes its name when all went well."""
    arriving = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        yield arriving
        os.link(arriving, out)
        _sync_folder(out.parent)
    except OSError as error:
        raise BackupError(f"cannot write {out}: {error.strerror or error}") from error
    finally:
        arriving.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
