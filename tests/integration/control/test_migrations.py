"""From every schema there ever was, with data in every table, to the newest: what is read is right,
whoever writes meanwhile loses nothing, and whatever kills the upgrade leaves nothing half-done.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import JSON, MetaData, func, insert, inspect, null, select, text

from control.clock import SystemClock
from control.db import tables
from control.db.sql import schema
from control.db.sql.engine import Database
from control.rules import packs
from tests.integration.control.api import Plane, plane
from tests.integration.control.outside import until
from tests.integration.control.scene import columns
from trainmaster.errors import TrainmasterError
from trainmaster.facts import Batch
from trainmaster.home import Home
from trainmaster.ids import rank_stream
from trainmaster.wire import Sync

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests" / "data" / "schema"
REVISIONS = sorted(
    each.revision for each in ScriptDirectory(str(schema.MIGRATIONS)).walk_revisions()
)
FIRST, SECOND = "rd4e36e77ce", "r21d3f6014b"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    url = f"sqlite:///{tmp_path}/a.db"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    db = Database(url)
    yield db
    db.close()


def filled(db: Database, revision: str) -> None:
    """Bring an empty database to `revision`, and put in what such a one held."""
    schema.upgrade(db, to=revision)
    with db.write() as connection:
        found = MetaData()
        found.reflect(connection)
        rows: dict[str, list[dict[str, Any]]] = {}
        for each in REVISIONS[: REVISIONS.index(revision) + 1]:
            for table, more in json.loads((DATA / f"{each}.json").read_text()).items():
                rows.setdefault(table, []).extend(more)
        for table in found.sorted_tables:
            if table.name not in rows:
                continue
            connection.execute(table.delete())
            for row in rows[table.name]:
                values = {
                    name: _value(value, table.c[name], zone=not db.is_sqlite)
                    for name, value in row.items()
                }
                connection.execute(insert(table).values(**values))
            if not db.is_sqlite and "id" in table.c and table.c.id.autoincrement is True:
                connection.execute(
                    text(
                        f"SELECT setval(pg_get_serial_sequence('{table.name}', 'id'), max(id)) "
                        f"FROM {table.name}"
                    )
                )


def _value(value: Any, column: Any, *, zone: bool) -> Any:
    if value is None:
        return null()
    if isinstance(value, dict) and "hex" in value:
        return bytes.fromhex(value["hex"])
    if isinstance(value, dict) and "instant" in value:
        at = datetime.fromisoformat(value["instant"])
        return at if zone else at.replace(tzinfo=None)
    if isinstance(value, dict) and "json" in value:
        assert isinstance(column.type, JSON), column
        return value["json"]
    return value


def require_right(here: Plane, *, sealed: bool) -> None:
    """What every API read tells of the rows of `tests/data/schema`."""
    runs = here.admin.get("/v1/runs")
    assert [each["name"] for each in runs] == ["alpha", *(["sealed"] if sealed else [])]
    run = here.admin.get(f"/v1/runs/{FIRST}")
    assert (run["state"], run["generation"], run["step"]) == ("running", 2, 16)
    assert run["spec"]["train"]["steps"] == 100
    assert run["because"] == "Generation 2 trains."
    one, two = run["attempts"]
    assert (one["state"], one["first_step"], one["last_step"]) == ("failed", 1, 12)
    assert (two["parent_generation"], two["resumed_from_checkpoint"]) == (1, f"{FIRST}-g1-s10")
    points = here.admin.get(f"/v1/runs/{FIRST}/series", metric="loss", points=100)["points"]
    assert [(generation, step) for generation, step, _, _ in points] == [
        *((1, step) for step in range(1, 11)),
        *((2, step) for step in range(11, 17)),
    ]
    values = {step: value for _, step, value, _ in points}
    assert (values[1], values[4], values[5], values[6]) == (5.0, "NaN", "Infinity", None)
    assert values[16] == 5.0 / 16
    abandoned = here.admin.get(
        f"/v1/runs/{FIRST}/series", metric="grad_norm", generation=1, rank=1, points=100
    )["points"]
    assert [step for _, step, _, _ in abandoned] == list(range(1, 13))
    assert run["skipped_steps"] == 1
    kinds = [each["kind"] for each in here.admin.get(f"/v1/runs/{FIRST}/events")]
    assert kinds.count("rank_ready") == 4
    assert {"run_submitted", "step_skipped", "checkpoint_committed", "rank_exited"} <= set(kinds)
    [checkpoint] = here.admin.get(f"/v1/runs/{FIRST}/checkpoints")
    assert (checkpoint["step"], checkpoint["state"], checkpoint["bytes"]) == (10, "committed", 1234)
    assert checkpoint["loss"] == 0.5
    [incident] = here.admin.get("/v1/incidents", run=FIRST)
    assert (incident["rule"], incident["actions"][0]["action"]) == ("loss_spike", "checkpoint")
    [alert] = here.admin.get("/v1/alerts", run=FIRST)
    assert (alert["state"], alert["value"], alert["threshold"]) == ("firing", "Infinity", 3.5)
    shipped = sum(len(packs.load(name)) for name in packs.NAMES)
    assert len(here.admin.get("/v1/rules")) == shipped
    [request] = here.admin.get(f"/v1/runs/{FIRST}/requests")
    assert (request["kind"], request["why"]) == ("checkpoint", "before lunch")
    [node] = here.admin.get("/v1/nodes")
    assert (node["name"], len(node["taken"])) == ("n1", 4 if sealed else 2)
    assert "run_submitted" in {each["action"] for each in here.admin.get("/v1/audit")}
    if sealed:
        told = here.admin.get(f"/v1/runs/{SECOND}/series", metric="loss", points=100)
        assert [step for _, step, _, _ in told["points"]] == list(range(1, 61))
        assert told["points"][3][2] == "NaN"


def require_that_nodes_go_on(here: Plane) -> None:
    """The node's next batch follows the cursor that went through the upgrade."""
    stream = rank_stream(FIRST, 2, 0)
    batch = Batch(
        stream=stream, from_offset=1000, to_offset=1100, samples=columns([17], loss=[1.5])
    )
    message = Sync(
        boot="b1",
        version="0",
        sent_at=datetime.now(UTC),
        address="127.0.0.1",
        slots=4,
        batches=[batch],
    )
    answer = here.as_node("n1").call("POST", "/v1/nodes/n1/sync", message.model_dump(mode="json"))
    assert answer.status_code == 200, answer.text
    assert answer.json()["cursors"] == {stream: 1100}


def test_each_revision_has_its_rows_and_every_table_has_some() -> None:
    files = {path.stem for path in DATA.glob("*.json")}
    assert files == set(REVISIONS), "tests/data/schema/README.md says what to add"
    held = {table for name in files for table in json.loads((DATA / f"{name}.json").read_text())}
    # One row, put there by the revision itself.
    assert set(tables.metadata.tables) - held == {"sample_sealing"}


@pytest.mark.parametrize("revision", REVISIONS)
def test_from_every_revision_with_data_to_the_newest(
    empty: Database, revision: str, tmp_path: Path
) -> None:
    filled(empty, revision)
    newest = revision == REVISIONS[-1]
    if not newest:
        with pytest.raises(schema.SchemaError, match="older"):
            schema.require_current(empty)
    assert schema.upgrade(empty) is not newest
    schema.require_current(empty)
    with empty.write() as connection:
        assert schema.differences(connection) == ""
    with plane(empty, Home(tmp_path / "home"), SystemClock()) as here:
        require_right(here, sealed=revision >= "0003")
        require_that_nodes_go_on(here)


@pytest.mark.parametrize("touch", [schema.upgrade, schema.require_current])
def test_a_b06_a_newer_schema_is_called_newer(db: Database, touch: Any) -> None:
    with db.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(schema.SchemaError, match="schema is newer than this version") as caught:
        touch(db)
    assert "9999" in caught.value.message
    assert "older" not in caught.value.message.replace("older than", "")


def test_an_upgrade_while_writers_write_loses_none_of_their_rows(empty: Database) -> None:
    filled(empty, "0001")
    stop = threading.Event()
    written: list[int] = []
    troubles: list[str] = []

    def write(number: int) -> None:
        table = tables.audit
        while not stop.is_set():
            try:
                with empty.write() as connection:
                    connection.execute(
                        insert(table).values(
                            at=datetime.now(UTC),
                            actor="w",
                            action=f"w{number}",
                            target="t",
                            data={},
                            why="",
                        )
                    )
                written.append(number)
            except TrainmasterError as error:
                troubles.append(str(error))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: len(written) > 20, "some rows")
    assert schema.upgrade(empty) is True
    before = len(written)
    until(lambda: len(written) > before + 20, "more rows")
    stop.set()
    for thread in threads:
        thread.join()
    assert troubles == []
    with empty.read() as connection:
        query = select(func.count()).select_from(tables.audit).where(tables.audit.c.actor == "w")
        assert connection.scalar(query) == len(written)


def test_a_table_in_use_is_waited_for_in_short_turns_and_the_upgrade_comes_through(
    empty: Database,
) -> None:
    if empty.is_sqlite:
        pytest.skip("on SQLite no reader holds up a change of the schema")
    filled(empty, "0003")
    reading, done = threading.Event(), threading.Event()

    def read_for_long() -> None:
        with empty.read() as connection:
            connection.execute(text("SELECT count(*) FROM runs"))
            reading.set()
            done.wait(60)

    reader = threading.Thread(target=read_for_long)
    reader.start()
    reading.wait(10)
    upgrade = threading.Thread(target=schema.upgrade, args=(empty,))
    upgrade.start()

    def others_get_through() -> bool:
        # Behind an upgrade that waits for its lock everybody waits, but not for longer than it.
        with empty.read() as connection:
            return connection.scalar(text("SELECT count(*) FROM runs")) is not None

    assert others_get_through()
    done.set()
    reader.join()
    upgrade.join(60)
    schema.require_current(empty)


def test_two_upgrades_at_once_are_one_upgrade(empty: Database) -> None:
    filled(empty, "0001")
    others = [Database(empty.url) for _ in range(3)]
    results: list[bool | TrainmasterError] = []

    def upgrade(db: Database) -> None:
        try:
            results.append(schema.upgrade(db))
        except TrainmasterError as error:
            results.append(error)

    threads = [threading.Thread(target=upgrade, args=(db,)) for db in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for db in others:
        db.close()
    assert sorted(map(str, results)) == ["False", "False", "True"]
    schema.require_current(empty)


KILLED = """
import os, signal, sys
from sqlalchemy import event
from control.db.sql import schema
from control.db.sql.engine import Database

db, left = Database(sys.argv[1]), int(sys.argv[2])

def count(conn, cursor, statement, parameters, context, executemany):
    global left
    if statement.lstrip().upper().startswith(("CREATE", "ALTER", "INSERT", "UPDATE", "DROP")):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

event.listen(db.engine, "after_cursor_execute", count)
schema.upgrade(db)
"""


@pytest.mark.parametrize("statement", [1, 4, 9])
def test_x_db03_an_upgrade_killed_in_the_middle_leaves_nothing_half_done(
    empty: Database, statement: int
) -> None:
    filled(empty, "0001")
    tables_before = _tables(empty)
    empty.close()
    done = subprocess.run(
        [sys.executable, "-c", KILLED, empty.url, str(statement)],
        cwd=ROOT,
        timeout=120,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, "the upgrade has more statements than that"
    if not empty.is_sqlite:
        until(lambda: _alone(empty), "PostgreSQL to notice the death")
    assert _tables(empty) == tables_before
    with empty.read() as connection:
        assert schema.revision(connection) == "0001"
    assert schema.upgrade(empty) is True
    schema.require_current(empty)


def _tables(db: Database) -> dict[str, list[str]]:
    with db.read() as connection:
        found = inspect(connection)
        return {
            name: [column["name"] for column in found.get_columns(name)]
            for name in found.get_table_names()
        }


def _alone(db: Database) -> bool:
    with db.read() as connection:
        others = connection.scalar(
            text(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                "AND pid <> pg_backend_pid() AND state LIKE '%transaction%'"
            )
        )
        return others == 0
