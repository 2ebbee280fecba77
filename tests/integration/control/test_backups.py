"""Back-ups: taken at work, refused where they would not help, put back; facts come again from
cursors that went back.
"""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import func, select, text

from control import backup
from control.clock import SystemClock
from control.db import restored, tables
from control.db.series import single
from control.db.sql import soundness
from control.db.sql.engine import Database
from control.serving import HeldError, migrate, sole_use
from control.settings import Settings
from tests.integration.control.conftest import FakeClock
from tests.integration.control.scene import Scene, columns, event
from tests.integration.control.test_serving import command
from tests.services.postgres import PostgresCluster, postgres_bin_dir
from trainmaster.errors import UserError
from trainmaster.home import Home
from trainmaster.wire import Running


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(Home(tmp_path / "home"))


@pytest.fixture
def scene(settings: Settings, clock: FakeClock):
    migrate(settings)
    db = Database(settings.database)
    scene = Scene(db, clock)
    scene.submit()
    scene.begin()
    tell(scene, 1, 10)
    yield scene
    db.close()


def tell(scene: Scene, first: int, last: int) -> None:
    """Have rank 0 tell steps; step s ends at byte 10 * s of its spool."""
    steps = range(first, last + 1)
    samples = columns(steps, loss=[float(step) for step in steps])
    scene.sync(scene.batch((first - 1) * 10, last * 10, samples=samples))


def told(db: Database, run: str) -> list[int]:
    with db.read() as connection:
        found = single.series(connection, run, "loss", rank=0, points=1000)["points"]
    return [step for _, step, _, _ in found]


def test_a_back_up_is_one_file_of_one_moment(
    scene: Scene, settings: Settings, tmp_path: Path
) -> None:
    out = tmp_path / "saved.db"
    size = backup.back_up(settings, out)
    tell(scene, 11, 20)
    assert out.stat().st_size == size
    assert out.stat().st_mode & 0o777 == 0o600
    assert soundness.findings(out) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "saved.db"]
    copy = Database(f"sqlite:///{out}")
    assert told(copy, scene.run) == list(range(1, 11))
    copy.close()


def test_after_a_restore_cursors_are_back_and_what_is_told_again_is_there_once(
    scene: Scene, settings: Settings, tmp_path: Path, clock: FakeClock
) -> None:
    out = tmp_path / "saved.db"
    backup.back_up(settings, out)
    tell(scene, 11, 20)
    scene.db.close()
    aside = backup.restore(settings, out, clock)
    assert aside is not None
    again = Scene(Database(settings.database), clock, scene.run)
    try:
        assert told(again.db, scene.run) == list(range(1, 11))
        assert again.sync(again.batch(200, 200)).cursors == {again.batch(0, 0).stream: 100}
        tell(again, 11, 20)
        tell(again, 11, 20)
        assert told(again.db, scene.run) == list(range(1, 21))
        assert again.row(tables.runs)["generation_floor"] > restored.LEAP
        assert [each["action"] for each in again.rows(tables.audit)][-1] == "database_restored"
    finally:
        again.db.close()
    old = Database(f"sqlite:///{aside}")
    assert told(old, scene.run) == list(range(1, 21)), "the old file is kept, late writes included"
    old.close()


def test_a_generation_beyond_the_database_is_told_once_and_numbered_above(
    scene: Scene, clock: FakeClock
) -> None:
    for _ in range(3):
        scene.sync(running=[Running(run=scene.run, generation=7, ranks={0: 1})])
    [said] = [each for each in scene.rows(tables.events) if each["kind"] == restored.UNKNOWN]
    assert (said["run"], said["generation"], said["data"]) == (scene.run, 7, {"node": "n1"})
    assert scene.row(tables.runs)["generation_floor"] == 8
    scene.sync(running=[Running(run=scene.run, generation=9, ranks={0: 1})])
    assert scene.row(tables.runs)["generation_floor"] == 10
    # Old generations are history, and no agent may lead a run to numbers out of all measure.
    scene.sync(running=[Running(run=scene.run, generation=10**9, ranks={0: 1})])
    scene.sync(running=[Running(run="r0000000000", generation=2, ranks={0: 1})])
    assert scene.row(tables.runs)["generation_floor"] == 10


def test_what_would_be_no_back_up_is_refused(
    settings: Settings, tmp_path: Path, scene: Scene
) -> None:
    other = Settings(Home(tmp_path / "other"))
    with pytest.raises(UserError, match="nothing to back up"):
        backup.back_up(other, tmp_path / "a")
    (tmp_path / "there").write_text("mine")
    with pytest.raises(UserError, match="is there already"):
        backup.back_up(settings, tmp_path / "there")
    assert (tmp_path / "there").read_text() == "mine"
    with pytest.raises(UserError, match="nowhere"):
        backup.back_up(settings, tmp_path / "nowhere" / "a")
    at_postgresql = replace(settings, database_url="postgresql+psycopg://a@b/c")
    for refused in (backup.back_up, lambda of, file: backup.restore(of, file, SystemClock())):
        with pytest.raises(UserError, match="pg_dump"):
            refused(at_postgresql, tmp_path / "a")
    with pytest.raises(UserError, match="pg_restore"):
        backup.note_restored(settings, SystemClock())


def test_what_cannot_be_put_back_is_refused_and_the_database_stays(
    scene: Scene, settings: Settings, tmp_path: Path, clock: FakeClock
) -> None:
    saved = tmp_path / "saved.db"
    backup.back_up(settings, saved)
    foreign, garbage, newer, torn = (tmp_path / name for name in ("f", "g", "n", "t"))
    with closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE a (b)")
    garbage.write_bytes(b"no database" * 1000)
    shutil.copy(saved, newer)
    with closing(sqlite3.connect(newer)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    torn.write_bytes(saved.read_bytes()[: saved.stat().st_size // 2])
    for file, words in (
        (tmp_path / "nowhere", "there is no file"),
        (foreign, "no database of Trainmaster"),
        (garbage, "is damaged"),
        (newer, "newer"),
        (torn, "is damaged"),
    ):
        with pytest.raises(UserError, match=words):
            backup.restore(settings, file, clock)
    with sole_use(settings), pytest.raises(HeldError, match="another control plane"):
        backup.restore(settings, saved, clock)
    assert told(scene.db, scene.run) == list(range(1, 11))
    names = {path.name for path in settings.home.database.parent.iterdir()}
    assert not any("restoring" in name or "before" in name for name in names), names


def test_a_restore_that_was_killed_is_begun_again_before_anything_is_served(
    scene: Scene, settings: Settings, tmp_path: Path, clock: FakeClock
) -> None:
    saved = tmp_path / "saved.db"
    backup.back_up(settings, saved)
    scene.db.close()
    soundness.restoring(settings.home.database).write_bytes(b"half")
    with pytest.raises(UserError, match="run `python -m control restore` once more"):
        migrate(settings)
    backup.restore(settings, saved, clock)
    soundness.require_sound(settings.home.database, used_before=True)


def test_postgresql_is_dumped_at_work_and_restored_as_the_page_says(
    db: Database, clock: FakeClock, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if db.is_sqlite:
        pytest.skip("PostgreSQL's own tools")
    for tool in ("pg_dump", "pg_restore"):
        if not (postgres_bin_dir() / tool).exists():
            pytest.skip(f"{tool} is not installed")
    cluster: PostgresCluster = request.getfixturevalue("postgres_cluster")
    scene = Scene(db, clock)
    scene.submit()
    scene.begin()
    tell(scene, 1, 10)
    scene.sync(scene.agent_batch(0, 5, event("node_started", boot="b1")))
    dump, target = tmp_path / "trainmaster.dump", cluster.create_database()
    address = db.url.replace("+psycopg", "")
    beside = cluster.url(target)
    for words in (
        ["pg_dump", "--format=custom", f"--file={dump}", address],
        [
            "pg_restore",
            "--exit-on-error",
            "--single-transaction",
            "--no-owner",
            f"--dbname={beside.replace('+psycopg', '')}",
            str(dump),
        ],
    ):
        subprocess.run([str(postgres_bin_dir() / words[0]), *words[1:]], check=True, timeout=60)
        if words[0] == "pg_dump":
            tell(scene, 11, 20)
    noted = command(tmp_path / "home", "restored", TRAINMASTER_DATABASE_URL=beside)
    assert noted.returncode == 0, noted.stderr
    assert "noted for 1 runs" in noted.stderr
    again = Scene(Database(beside), clock, scene.run)
    try:
        assert told(again.db, scene.run) == list(range(1, 11))
        tell(again, 11, 20)
        assert told(again.db, scene.run) == list(range(1, 21))
        assert again.row(tables.runs)["generation_floor"] > restored.LEAP
        before = again.rows(tables.events)[-1]["id"]
        again.sync(again.agent_batch(5, 9, event("node_started", boot="b2")))
        assert again.rows(tables.events)[-1]["id"] > before, "numbers go on, too"
    finally:
        again.db.close()
        cluster.drop_database(target)


def test_reading_waits_for_no_back_up(scene: Scene, settings: Settings, tmp_path: Path) -> None:
    """And a back-up for no reader: both see one moment."""
    with scene.db.write() as connection:
        connection.execute(text("UPDATE leadership SET epoch = 41"))
        backup.back_up(settings, tmp_path / "saved.db")
    with closing(sqlite3.connect(tmp_path / "saved.db")) as saved:
        assert saved.execute("SELECT epoch FROM leadership").fetchall() == [(0,)]
    with scene.db.read() as connection:
        assert connection.scalar(select(func.count()).select_from(tables.runs)) == 1
