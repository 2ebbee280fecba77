"""Clocks that are set while a run trains: the database's, and a node's. No node is lost by it, and
nothing takes less than no time.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import select

from control.clock import Reading, SteadyClock
from control.db import tables
from control.db.instants import source_of
from control.db.sql.engine import Database
from tests.integration.control.api import SPEC, FakeNode, Plane, plane, stream_of
from tests.integration.control.scene import event
from tests.integration.control.test_whole_run import assigned, start, state, until
from trainmaster.facts import Columns
from trainmaster.home import Home
from trainmaster.wire import Assignment

FAST = timedelta(seconds=300)


class Wall:
    """A clock that somebody sets."""

    def __init__(self, db: Database) -> None:
        self.set = timedelta(0)
        self._source = source_of(db)

    def read(self) -> Reading:
        told = self._source()
        return Reading(told.now + self.set, told.written)


def looked_at(db: Database, run: str) -> datetime:
    with db.read() as connection:
        found = connection.scalar(select(tables.runs.c.next_look_at).where(tables.runs.c.id == run))
    assert found is not None
    return found


def nodes(here: Plane) -> list[str]:
    return [each["state"] for each in here.admin.get("/v1/nodes")]


def tell_steps(node: FakeNode, assignment: Assignment, steps: range, ahead: timedelta) -> None:
    """Tell of steps by a rank whose clock is ahead."""
    at = (datetime.now(UTC) + ahead).timestamp()
    told = Columns(
        steps=list(steps),
        at=[at + each / 100 for each in range(len(steps))],
        values={name: [1.0] * len(steps) for name in ("loss", "applied", "tokens", "step_time_s")},
    )
    node.sync(*((stream_of(assignment, each.rank), told, []) for each in assignment.ranks))


def test_the_clock_is_set_forwards_and_back_and_no_node_is_lost(
    db: Database, tmp_path: Path
) -> None:
    wall = Wall(db)
    clock = SteadyClock(wall.read)
    with plane(db, Home(tmp_path / "home"), clock, leads=True) as here:
        node = FakeNode(here.as_node("n1"))
        run = here.admin.post("/v1/runs", {"spec": SPEC}, expect=201)["id"]
        assignment = assigned(node, 1)
        start(node, assignment)
        until(lambda: state(here, run) == "running", "the ranks to be known as ready")

        before = clock.now()
        wall.set = FAST
        clock.refresh()
        assert nodes(here) == ["present"]
        until(lambda: looked_at(db, run) > before + FAST, "a turn after the step, without a sync")
        assert (nodes(here), state(here, run)) == (["present"], "running")
        node.turn()

        wall.set = timedelta(0)
        ahead = clock.now()
        clock.refresh()
        tell_steps(node, assignment, range(1, 6), FAST)
        tell_steps(node, assignment, range(6, 11), timedelta(0))
        assert clock.now() >= ahead
        assert (nodes(here), state(here, run)) == (["present"], "running")
        told = [each["kind"] for each in here.admin.get(f"/v1/runs/{run}/events")]
        assert "run_unreachable" not in told
        assert "run_recovering" not in told
        check_no_time_is_negative(here, run)


def test_a_ranks_clock_that_is_ahead_and_then_set_back_makes_no_time_negative(
    db: Database, tmp_path: Path
) -> None:
    with plane(db, Home(tmp_path / "home"), SteadyClock(source_of(db)), leads=True) as here:
        node = FakeNode(here.as_node("n1"))
        run = here.admin.post("/v1/runs", {"spec": SPEC}, expect=201)["id"]
        assignment = assigned(node, 1)
        start(node, assignment)
        until(lambda: state(here, run) == "running", "the ranks to be known as ready")
        tell_steps(node, assignment, range(1, 6), FAST)
        committed = event(
            "checkpoint_committed",
            step=5,
            location=f"{assignment.checkpoint_root}/g1-step5",
            manifest_sha256="sha256:" + "0" * 64,
        ).model_copy(update={"at": datetime.now(UTC) + FAST})
        node.sync((stream_of(assignment, 0), None, [committed]))
        tell_steps(node, assignment, range(6, 11), timedelta(0))
        assert nodes(here) == ["present"]
        assert state(here, run) == "running"
        preview = here.admin.post(f"/v1/runs/{run}/restore-preview", {"checkpoint": f"{run}-g1-s5"})
        assert all(value >= 0 for value in preview.values() if isinstance(value, int | float))
        check_no_time_is_negative(here, run)


def check_no_time_is_negative(here: Plane, run: str) -> None:
    shown = here.admin.get(f"/v1/runs/{run}")
    assert min(shown["goodput"].values()) >= 0
    assert (shown["tokens_per_s"] or 0) >= 0
    assert (shown["step"], shown["loss"]) == (10, 1.0)
    for attempt in shown["attempts"]:
        assert attempt["ended_at"] is None or attempt["ended_at"] >= attempt["started_at"]
    exposed = here.admin.call("GET", "/metrics").text
    times = [
        line for line in exposed.splitlines() if "_seconds" in line.split("{")[0].split(" ")[0]
    ]
    assert [line for line in times if float(line.split()[-1]) < 0 and line[0] != "#"] == []
