"""The embedded database on a full disk, locked by others, read-only or damaged: refused at the
start with the way back, answered with 503 in plain words at work; all goes on by itself afterwards.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, text

from control.clock import SystemClock
from control.clockwork import Clockwork
from control.db import tables
from control.db.sql import schema, soundness
from control.db.sql.engine import Database
from control.reconciler import Reconciler
from tests.integration.control.outside import Fleet, fleet, prepare, until
from tests.integration.control.scene import Scene
from tests.integration.control.test_serving import command, serving
from trainmaster.errors import UnavailableError
from trainmaster.home import Home

DISK_MIB = 24


@pytest.fixture
def file(sqlite_template: Path, tmp_path: Path) -> Path:
    """A database with many rows, closed in good order."""
    path = tmp_path / "trainmaster.db"
    path.write_bytes(sqlite_template.read_bytes())
    db = Database(f"sqlite:///{path}")
    scene = Scene(db, SystemClock())
    for number in range(40):
        scene.submit(name=f"run-{number}")
    db.close()
    return path


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs root and mount(8) for a small disk of its own")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


@contextlib.contextmanager
def at_home(home: Path, template: Path) -> Iterator[Fleet]:
    """A control plane in a process of its own over a fresh database, and its nodes."""
    database = Home(home).database
    database.parent.mkdir(parents=True)
    shutil.copy(template, database)
    db = Database(f"sqlite:///{database}")
    prepared = prepare(db)
    try:
        with serving(home) as (_, address):
            token = Home(home).token()
            assert token is not None
            yield fleet(db, address, token, prepared)
    finally:
        db.close()


def test_a_full_disk_under_sqlite_loses_nothing_and_goes_on_when_there_is_room(
    sqlite_template: Path, small_disk: Path
) -> None:
    with at_home(small_disk / "home", sqlite_template) as ring:
        ballast = small_disk / "ballast"
        with ring.at_work():
            with ballast.open("wb", buffering=0) as filling, contextlib.suppress(OSError):
                while True:
                    filling.write(b"\0" * (64 << 10))
            ring.wait_for_refusal("is full", "free some space", "trainmaster.db")
            degraded = ring.get("/readyz")
            assert degraded.status_code == 503
            assert "is full" in degraded.json()["detail"]
            assert ring.get("/v1/runs").status_code == 200, "what is there can still be read"
            ballast.unlink()
            until(ring.ready, "the control plane to be ready by itself")
        ring.require_that_runs_go_on()


def test_damage_at_work_is_answered_with_the_way_back_and_does_not_run_hot(
    sqlite_template: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    database = Home(home).database
    with at_home(home, sqlite_template) as ring:
        with ring.at_work():
            pass
        ring.db.close()
        for path in (database, database.with_name("trainmaster.db-wal")):
            with path.open("r+b") as damaged:
                damaged.write(b"\xa5" * path.stat().st_size)
        capfd.readouterr()

        def refusal() -> str | None:
            answer = ring.get("/v1/runs")
            assert answer.status_code in {200, 503}, answer.text
            return None if answer.status_code == 200 else str(answer.json()["detail"])

        said = until(refusal, "the damage to be found")
        assert "is damaged" in said
        assert "python -m control restore" in said
        assert ring.get("/healthz").status_code == 200
        degraded = ring.get("/readyz")
        assert degraded.status_code == 503
        assert int(degraded.headers["Retry-After"]) >= 10
        # Each piece of periodic work tells of it once, however often it tries.
        threading.Event().wait(1.5)
        assert capfd.readouterr().err.count("is put off") <= 5
    refused = command(home, "serve")
    assert refused.returncode == 2
    assert str(database) in refused.stderr
    assert "Traceback" not in refused.stderr


def header(path: Path) -> None:
    with path.open("r+b") as opened:
        opened.write(b"\0" * 100)


def garbage(path: Path) -> None:
    path.write_bytes(b"This was a database once.\n" * 1000)


def zeroed_pages(path: Path) -> None:
    with path.open("r+b") as opened:
        opened.seek(path.stat().st_size // 4096 // 2 * 4096)
        opened.write(b"\0" * 4096 * 8)


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 3)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize("damage", [header, garbage, zeroed_pages, truncated, emptied])
def test_a_damaged_file_is_refused_before_it_is_touched(
    file: Path, damage: Callable[[Path], None]
) -> None:
    soundness.require_sound(file, used_before=True)
    damage(file)
    before = file.read_bytes()
    with pytest.raises(soundness.DamagedError) as caught:
        soundness.require_sound(file, used_before=True)
    assert str(file) in caught.value.message
    assert "python -m control restore BACKUP" in caught.value.message
    assert file.read_bytes() == before


def test_a_database_that_is_only_beginning_is_no_damage(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    soundness.require_sound(file, used_before=True)
    file.touch()
    soundness.require_sound(file, used_before=False)


def test_a_damaged_log_of_late_writes_sets_the_database_back_and_it_is_whole(
    file: Path, tmp_path: Path
) -> None:
    """What the log held is lost, as after a power cut; nodes tell their part of it again."""
    db = Database(f"sqlite:///{file}")
    scene = Scene(db, SystemClock())
    for number in range(20):
        scene.submit(name=f"late-{number}")
    crashed = tmp_path / "crashed.db"
    shutil.copy(file, crashed)
    log = tmp_path / "crashed.db-wal"
    shutil.copy(file.with_name(f"{file.name}-wal"), log)
    db.close()
    with log.open("r+b") as opened:
        opened.seek(log.stat().st_size // 2)
        opened.write(b"\0" * 5000)
    soundness.require_sound(crashed, used_before=True)
    again = Database(f"sqlite:///{crashed}")
    schema.upgrade(again)
    with again.read() as connection:
        runs = connection.scalar(select(func.count()).select_from(tables.runs))
    again.close()
    assert runs is not None
    assert 40 <= runs < 60


@pytest.mark.parametrize("address", ["mode=ro", "immutable=1"])
def test_a_file_that_cannot_be_written_is_said_to_be_so(file: Path, address: str) -> None:
    db = Database(f"sqlite:///file:{file}?{address}&uri=true")
    insert = text("UPDATE leadership SET epoch = epoch + 1")
    with pytest.raises(UnavailableError, match="cannot be written to"), db.write() as connection:
        connection.execute(insert)
    with pytest.raises(UnavailableError, match="cannot be written to"):
        db.probe()
    db.close()


def test_a_b02_reading_waits_for_no_writer(db: Database) -> None:
    with db.write() as connection:
        connection.execute(text("UPDATE leadership SET epoch = epoch + 1"))
        reading: list[Any] = []
        other = threading.Thread(target=lambda: reading.append(_count(db)))
        other.start()
        other.join(10)
        assert reading == [0]


def _count(db: Database) -> int | None:
    with db.read() as connection:
        return connection.scalar(select(func.count()).select_from(tables.runs))


def test_a_lock_held_by_another_program_is_waited_for_and_then_told(file: Path) -> None:
    db = Database(f"sqlite:///{file}", timeout_s=0.2)
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UnavailableError, match="held by another writer"), db.write():
            pass
        other.execute("ROLLBACK")
    with db.write() as connection:
        connection.execute(text("UPDATE leadership SET epoch = epoch + 1"))
    db.close()


def test_the_periodic_work_outlives_a_database_that_is_away(db: Database) -> None:
    """Every piece of it is tried again; no thread ends."""
    clock = SystemClock()

    class Away(Reconciler):
        tries = 0

        def tick(self) -> int:
            Away.tries += 1
            if Away.tries < 4:
                raise UnavailableError("away")
            return super().tick()

    clockwork = Clockwork(db, clock, Away(db, clock, up_since=clock.now()))
    clockwork.start()
    try:
        scene = Scene(db, clock)
        run = scene.submit()
        until(lambda: scene.row(tables.runs, id=run)["because"], "the run's turn")
    finally:
        clockwork.stop()
