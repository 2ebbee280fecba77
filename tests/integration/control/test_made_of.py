"""What a run was made of stays, whatever a later look at the same workload finds."""

from __future__ import annotations

from typing import Any

from control.db import history, queries, tables
from control.db.fleet import chores
from control.db.sql.engine import Database
from control.db.sql.upsert import upsert
from tests.integration.control.conftest import FakeClock
from tests.integration.control.scene import Scene, spec
from trainmaster.spec import RunSpec


def look(scene: Scene, code: str) -> None:
    asked: RunSpec = spec()
    row = {
        "key": chores.digest(chores.workload_args(asked.workload, asked.params, asked.data.source)),
        "info": {"code_sha256": code, "environment": {"torch": code}, "layers": []},
        "problems": [],
        "described_at": scene.clock.now(),
        "node": scene.node,
    }
    with scene.db.write() as connection:
        upsert(connection, tables.workloads, [row])


def started(scene: Scene, made_of: dict[str, Any] | None) -> None:
    with scene.db.write() as connection:
        history.record(
            connection,
            at=scene.clock.now(),
            run=scene.run,
            kind="run_starting",
            actor="control",
            because="",
            data={"made_of": made_of},
        )


def test_a_later_look_at_the_workload_changes_nothing_of_a_run_that_has_begun(
    db: Database, clock: FakeClock
) -> None:
    scene = Scene(db, clock)

    def code() -> Any:
        with db.read() as connection:
            told = queries.show(connection, scene.run)["workload"]
        return told and (told["code_sha256"], told["environment"]["torch"])

    scene.submit()
    assert code() is None
    look(scene, "old")
    assert code() == ("old", "old")
    started(scene, {"code_sha256": "old", "environment": {"torch": "old"}})
    look(scene, "new")
    assert code() == ("old", "old")
    started(scene, None)
    assert code() == ("new", "new")
