"""The list of runs that people keep open: what is remembered between looks, tags, the archive."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from control.db import shelf
from control.db.accounts import Account, Accounts
from control.db.overviews import CURVE_POINTS, Overviews
from control.db.samples import chunks, samples
from control.db.sql.engine import Database
from tests.integration.control.api import plane
from tests.integration.control.conftest import FakeClock
from tests.integration.control.scene import Scene
from trainmaster.errors import ConflictError, NotFoundError
from trainmaster.home import Home


@pytest.fixture
def scene(db: Database, clock: FakeClock) -> Scene:
    made = Scene(db, clock)
    made.sync()
    return made


def tell(scene: Scene, run: str, steps: range) -> None:
    values = {"loss": [1.0 / step for step in steps], "tokens": [8.0] * len(steps)}
    made = chunks.rows_of(list(steps), [1.7e9 + 2 * step for step in steps], values)
    with scene.db.write() as connection:
        samples.append(connection, run, 1, 0, made)


def listed(scene: Scene, overviews: Overviews, **asked: Any) -> list[dict[str, Any]]:
    with scene.db.read() as connection:
        return overviews.listed(connection, **asked)


def test_what_has_not_changed_is_not_read_again(scene: Scene) -> None:
    for name in ("one", "two", "three"):
        scene.submit(name=name)
    overviews, statements = Overviews(), list[str]()
    first = listed(scene, overviews)
    engine = scene.db.engine
    event.listen(engine, "before_cursor_execute", lambda *told: statements.append(str(told[2])))
    assert listed(scene, overviews) == first
    asked = len([each for each in statements if each.startswith("SELECT")])
    assert asked <= 3, statements
    assert sorted(run["name"] for run in first) == ["one", "three", "two"]


def test_runs_that_wait_are_read_together(scene: Scene) -> None:
    for number in range(30):
        scene.submit(name=f"run-{number}")
    statements = list[str]()
    event.listen(
        scene.db.engine, "before_cursor_execute", lambda *told: statements.append(str(told[2]))
    )
    assert len(listed(scene, Overviews())) == 30
    assert len([each for each in statements if each.startswith("SELECT")]) <= 5, statements


def test_what_has_changed_is_told_at_the_next_look(scene: Scene, clock: FakeClock) -> None:
    run, overviews = scene.submit(), Overviews()
    assert [each["state"] for each in listed(scene, overviews)] == ["queued"]
    scene.begin(slots=(0,))
    assert [each["state"] for each in listed(scene, overviews)] == ["starting"]
    with scene.db.write() as connection:
        shelf.tag(connection, run, ["big", "mine", "big"], actor="ann", now=clock.now())
    assert [each["tags"] for each in listed(scene, overviews)] == [["big", "mine"]]


def test_the_curve_is_a_few_points_and_keeps_its_extremes(scene: Scene, clock: FakeClock) -> None:
    run = scene.submit()
    scene.begin(slots=(0,))
    tell(scene, run, range(1, 301))
    overviews = Overviews()
    with scene.db.read() as connection:
        runs = overviews.listed(connection)
        [told] = overviews.with_more(connection, runs, Accounts(), now=clock.now())
    assert len(told["loss_curve"]) <= CURVE_POINTS
    assert told["loss_curve"][0] == [1, 1.0]
    assert told["loss_curve"][-1] == [300, 1 / 300]
    assert 0 <= told["productive_ratio"] <= 1


def test_a_look_that_has_no_time_left_leaves_the_rest_for_the_next(
    scene: Scene, clock: FakeClock
) -> None:
    for name in ("old", "middle", "new"):
        scene.submit(name=name)
        clock.pass_s(1)
    hours = iter(range(0, 10**6, 3600))
    overviews = Overviews(monotonic=lambda: next(hours) / 7200 * 0.25)
    for known in (["new"], ["middle", "new"], ["old", "middle", "new"]):
        with scene.db.read() as connection:
            runs = overviews.listed(connection)
            told = overviews.with_more(connection, runs, Accounts(), now=clock.now())
        assert [each["name"] for each in told if each["productive_ratio"] is not None] == known


def test_those_who_ask_at_once_wait_for_one_account(scene: Scene, clock: FakeClock) -> None:
    run = scene.submit()
    accounts = Accounts(monotonic=count().__next__)

    def ask(_: int) -> Account:
        with scene.db.read() as connection:
            return accounts.of(connection, run, now=clock.now())

    with ThreadPoolExecutor(4) as asking:
        found = list(asking.map(ask, range(4)))
    assert all(each is found[0] for each in found)


def test_only_what_has_ended_goes_to_the_archive_and_lists_can_leave_it_out(
    scene: Scene, clock: FakeClock
) -> None:
    run, overviews = scene.submit(), Overviews()
    with pytest.raises(ConflictError), scene.db.write() as connection:
        shelf.archive(connection, run, archived=True, actor="ann", now=clock.now())
    scene.decide(state="stopped")
    with scene.db.write() as connection:
        shelf.archive(connection, run, archived=True, actor="ann", now=clock.now())
    assert listed(scene, overviews, archived=False) == []
    assert [each["id"] for each in listed(scene, overviews, archived=True)] == [run]
    with scene.db.write() as connection:
        shelf.archive(connection, run, archived=False, actor="ann", now=clock.now())
    assert [each["archived_at"] for each in listed(scene, overviews)] == [None]
    with pytest.raises(NotFoundError), scene.db.write() as connection:
        shelf.tag(connection, "none", [], actor="ann", now=clock.now())


def test_who_may_put_runs_where_and_that_it_is_written_down(
    scene: Scene, db: Database, clock: FakeClock, tmp_path: Path
) -> None:
    run = scene.submit()
    with plane(db, Home(tmp_path / "home"), clock) as here:
        operator, viewer = here.people["operator"], here.people["viewer"]
        path = f"/v1/runs/{run}/tags"
        assert operator.call("PUT", path, {"tags": ["good one"]}).json()["tags"] == ["good one"]
        assert operator.call("PUT", path, {"tags": ["a,b"]}).status_code == 422
        assert viewer.call("PUT", path, {"tags": []}).status_code == 403
        operator.post(f"/v1/runs/{run}/archive", {}, expect=409)
        [listed] = viewer.get("/v1/runs", archived=False, more=True)
        assert listed["loss_curve"] == []
        assert [each["action"] for each in operator.get("/v1/audit")][-1] == "run_tagged"
