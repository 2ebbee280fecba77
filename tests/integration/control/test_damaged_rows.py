"""One row that cannot be read: everything else goes on, the row is named, and it is mended."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from control.clock import SystemClock
from control.db import history, tables, unreadable
from control.db.sql.engine import Database
from control.reconciler import Reconciler
from control.serving import mend
from control.settings import Settings
from tests.integration.control.api import FakeNode, Plane, plane
from tests.integration.control.scene import Scene, columns
from trainmaster.errors import UserError
from trainmaster.home import Home

NO_SPEC = '{"name": "alpha"}'
NO_JSON = '{"name": "al'


@pytest.fixture
def scene(db: Database) -> Scene:
    scene = Scene(db, SystemClock())
    scene.submit(name="alpha")
    scene.begin()
    scene.sync(scene.batch(0, 10, samples=columns([1, 2], loss=[2.0, 1.0])))
    return scene


def damage(db: Database, table: str, column: str, value: str, run: str) -> None:
    key = "id" if table == "runs" else "run"
    cast = "" if db.is_sqlite else "::json"
    with db.write() as connection:
        connection.execute(
            text(f"UPDATE {table} SET {column} = (:value){cast} WHERE {key} = :run"),
            {"value": value, "run": run},
        )


@pytest.mark.parametrize(
    ("table", "column"), [("runs", "spec"), ("attempts", "plan"), ("attempts", "skip")]
)
@pytest.mark.parametrize("value", [NO_SPEC, NO_JSON, "[1]"])
def test_a_b04_a_damaged_run_is_shown_as_such_and_spoils_no_other(
    scene: Scene, db: Database, tmp_path: Path, table: str, column: str, value: str
) -> None:
    if value == NO_JSON and not db.is_sqlite:
        pytest.skip("PostgreSQL takes no such value")
    bad = scene.run
    damage(db, table, column, value, bad)
    good = scene.submit(name="beta")
    with plane(db, Home(tmp_path / "home"), SystemClock()) as here:
        listed = {each["id"]: each for each in here.admin.get("/v1/runs")}
        assert set(listed) == {bad, good}
        assert listed[good]["unreadable"] is None
        assert listed[good]["target_steps"] == 100
        assert (listed[bad]["name"], listed[bad]["state"]) == ("alpha", "starting")
        assert "trainmaster doctor" in listed[bad]["unreadable"]
        assert here.admin.get(f"/v1/runs/{good}")["unreadable"] is None
        shown = here.admin.get(f"/v1/runs/{bad}")
        assert (shown["attempts"], len(shown["ranks"])) == ([], 2)
        assert shown["unreadable"] == listed[bad]["unreadable"]
        require_no_bug(here, bad)
        found = here.admin.get("/v1/unreadable")
        assert {each["run"] for each in found} == {bad}
        assert {each["table"] for each in found} == {table}
        assert all(each["mend"] for each in found)


def require_no_bug(here: Plane, run: str) -> None:
    """No page about the run is answered with 500."""
    for path in ("", "/series?metric=loss", "/events", "/checkpoints", "/alerts", "/goodput"):
        answer = here.admin.call("GET", f"/v1/runs/{run}{path}")
        assert answer.status_code in {200, 503}, (path, answer.text)
        if answer.status_code == 503:
            assert answer.json()["code"] == "unreadable"
    assert here.admin.call("GET", "/metrics").status_code == 200


@pytest.mark.parametrize(("table", "column"), [("runs", "spec"), ("attempts", "plan")])
def test_a_b04_the_reconciler_leaves_it_alone_and_turns_to_the_others(
    scene: Scene, db: Database, table: str, column: str, caplog: pytest.LogCaptureFixture
) -> None:
    damage(db, table, column, NO_SPEC, scene.run)
    bad, good = scene.run, scene.submit(name="beta")
    reconciler = Reconciler(db, SystemClock(), up_since=SystemClock().now())
    for _ in range(3):
        reconciler.tick()
        with db.write() as connection:
            history.touch_all(connection, [bad], SystemClock().now())
    assert scene.row(tables.runs, id=good)["because"] != ""
    told = [each for each in caplog.records if bad in each.getMessage()]
    assert len(told) == 1
    assert "is left alone" in told[0].getMessage()


def test_a_b04_a_node_of_a_damaged_run_is_stored_and_told_nothing_to_stop(
    scene: Scene, db: Database, tmp_path: Path
) -> None:
    """To leave an assignment out would have its ranks stopped."""
    other = scene.submit(name="beta")
    scene.begin(node="n2", run=other)
    damage(db, "attempts", "plan", NO_SPEC, other)
    with plane(db, Home(tmp_path / "home"), SystemClock()) as here:
        fine = FakeNode(here.as_node("n1"), "n1")
        assert [each.run for each in fine.sync().assignments] != []
        refused = here.as_node("n2").call(
            "POST",
            "/v1/nodes/n2/sync",
            {"boot": "b", "version": "0", "sent_at": "2026-03-01T12:00:00Z", "address": "a",
             "slots": 4},
        )  # fmt: skip
        assert refused.status_code == 503
        assert refused.json()["code"] == "unreadable"
        assert other in refused.json()["detail"]
        assert {each["name"] for each in here.admin.get("/v1/nodes")} == {"n1", "n2"}


def test_a_b04_a_spec_is_mended_from_the_newest_attempt(
    scene: Scene, db: Database, tmp_path: Path
) -> None:
    run, before = scene.run, scene.row(tables.runs)["spec"]
    with pytest.raises(UserError, match="nothing to mend"), db.write() as connection:
        unreadable.mend(connection, run, actor="ann", now=SystemClock().now())
    damage(db, "runs", "spec", NO_SPEC, run)
    assert mend(Settings(Home(tmp_path / "home"), database_url=db.url), run) == 1
    assert scene.row(tables.runs)["spec"] == before
    assert scene.rows(tables.events)[-1]["kind"] == "run_mended"
    assert scene.rows(tables.audit)[-1]["data"]["was"].replace(" ", "") == '{"name":"alpha"}'
    with db.read() as connection:
        assert unreadable.findings(connection) == []


def test_a_b04_what_nobody_can_mend_is_told_to_come_from_a_back_up(
    scene: Scene, db: Database
) -> None:
    damage(db, "runs", "spec", NO_SPEC, scene.run)
    damage(db, "attempts", "spec", NO_SPEC, scene.run)
    with pytest.raises(UserError, match=r"backup\.md"), db.write() as connection:
        unreadable.mend(connection, scene.run, actor="ann", now=SystemClock().now())
    with db.read() as connection:
        found = unreadable.findings(connection)
    assert {(each.table, "backup.md" in each.mend) for each in found} == {
        ("runs", True),
        ("attempts", True),
    }
