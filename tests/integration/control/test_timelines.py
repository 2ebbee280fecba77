"""Timelines from the sync to the API: stored once, listed, shown beside the plan, kept within
bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from control.clockwork import Clockwork
from control.db import assignments, tables, timelines
from control.db.assignments import FixedParts
from control.db.samples.ageing import Ages
from control.db.sql.engine import Database
from control.decision import NewOrder
from control.reconciler import Reconciler
from tests.integration.control.api import Plane, plane
from tests.integration.control.conftest import FakeClock
from tests.integration.control.scene import Scene
from trainmaster.errors import SpecError
from trainmaster.facts import Batch, PackedTimeline
from trainmaster.home import Home
from trainmaster.timeline import Action, Clock, Timeline, encode

MS = 1_000_000


@pytest.fixture
def scene(db: Database, clock: FakeClock) -> Scene:
    scene = Scene(db, clock)
    scene.sync()
    scene.submit()
    scene.begin()
    return scene


@pytest.fixture
def here(db: Database, tmp_path: Path, clock: FakeClock) -> Iterator[Plane]:
    with plane(db, Home(tmp_path / "home"), clock) as made:
        yield made


def recorded(step: int, rank: int, *, ahead_s: float = 0.0) -> bytes:
    """1F1B of eight micro-batches on two stages of 1 ms a forward, the second's clock ahead."""
    actions = [Action("pass", -1, -1, 0, 40 * MS)]
    for each in range(8):
        start = (3 * each + rank) * MS
        actions.append(Action("forward", rank, each, start, start + MS))
        if rank == 0:
            actions.append(Action("send_activation", 0, each, start + MS, start + MS, 64))
        else:
            actions.append(Action("wait_activation", 1, each, start - MS // 2, start))
        actions.append(Action("backward", rank, each, start + MS, start + 3 * MS))
    clock = Clock(offset_s=-ahead_s, error_s=2e-5 * rank)
    return encode(Timeline(step, 1.7e9 + step, 50.0 + ahead_s, 41 * MS, clock, tuple(actions)))


def told(scene: Scene, rank: int, begin: int, *steps: int, ahead_s: float = 0.0) -> Batch:
    packed = [PackedTimeline(data=recorded(step, rank, ahead_s=ahead_s)) for step in steps]
    batch = scene.batch(begin, begin + 100, rank=rank)
    return batch.model_copy(update={"timelines": packed})


def test_a_recorded_step_is_stored_once_listed_and_shown_on_one_clock(
    scene: Scene, here: Plane
) -> None:
    for _ in range(2):
        scene.sync(told(scene, 0, 0, 20), told(scene, 1, 0, 20, ahead_s=1000.0))
    path = f"/v1/runs/{scene.run}/timelines"
    viewer = here.people["viewer"]
    [listed] = viewer.get(path)
    assert (listed["generation"], listed["step"], listed["ranks"]) == (1, 20, 2)
    assert listed["actions"] == 2 * 25
    shown = viewer.get(f"{path}/20")
    assert (shown["run"], shown["generation"], shown["step"]) == (scene.run, 1, 20)
    assert shown["missing_ranks"] == []
    assert shown["clock_error_s"] == 2e-5
    first, second = shown["ranks"]
    assert (first["start_s"], second["start_s"]) == (0.0, 0.0), "1000 s apart by their own clocks"
    assert second["actions"]["kind"].count("forward") == 8
    assert second["actions"]["start_s"][1] == pytest.approx(0.001)
    assert first["summary"]["bubble_ratio"] == pytest.approx(1 - 24 / 25, abs=1e-6)
    assert second["summary"]["waited_under_way_s"] == pytest.approx(0.0)
    [planned] = shown["planned"]
    assert planned["because"] is None
    assert planned["length_s"] == pytest.approx(0.027), "(8 + 2 - 1) (1 + 2) ms"
    assert [rank["bubble_ratio"] for rank in planned["ranks"]] == pytest.approx([1 / 9] * 2)


def test_a_trace_has_named_processes_nested_events_and_an_arrow_for_each_message(
    scene: Scene, here: Plane
) -> None:
    scene.sync(told(scene, 0, 0, 20), told(scene, 1, 0, 20))
    trace = here.people["viewer"].get(f"/v1/runs/{scene.run}/timelines/20", format="chrome")
    events = trace["traceEvents"]
    names = {
        (each["name"], each["args"]["name"])
        for each in events
        if each["ph"] == "M" and "name" in each["args"]
    }
    assert ("process_name", "replica 0 (n1)") in names or ("process_name", "replica 0") in names
    assert ("thread_name", "rank 1, place 1") in names
    starts = {each["id"] for each in events if each["ph"] == "s"}
    assert starts == {each["id"] for each in events if each["ph"] == "f"}
    assert len(starts) == 8
    require_nested(events)


def require_nested(events: list[dict[str, Any]]) -> None:
    """Complete events of a thread lie beside or within each other, as the format asks."""
    threads: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for each in events:
        if each["ph"] == "X":
            spans = threads.setdefault((each["pid"], each["tid"]), [])
            spans.append((each["ts"], each["ts"] + each["dur"]))
    assert len(threads) == 4, "two ranks, measured and planned"
    for spans in threads.values():
        open_: list[float] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_ and open_[-1] <= start + 1e-6:
                open_.pop()
            assert not open_ or end <= open_[-1] + 1e-3
            open_.append(end)


def test_a_rank_that_told_nothing_is_named_and_there_is_no_plan_then(
    scene: Scene, here: Plane
) -> None:
    scene.sync(told(scene, 0, 0, 20))
    shown = here.people["viewer"].get(f"/v1/runs/{scene.run}/timelines/20")
    assert shown["missing_ranks"] == [1]
    assert shown["planned"][0]["because"] == "nothing was recorded of stage 1"


def test_a_step_that_was_not_recorded_is_refused_with_those_that_were(
    scene: Scene, here: Plane
) -> None:
    scene.sync(told(scene, 0, 0, 20, 30))
    answer = here.people["viewer"].call("GET", f"/v1/runs/{scene.run}/timelines/25")
    assert answer.status_code == 404
    assert "the newest recorded are 20, 30" in answer.json()["detail"]
    absent = here.people["viewer"].call("GET", "/v1/runs/nobody/timelines")
    assert absent.status_code == 404


def test_bytes_that_are_no_timeline_are_refused_by_name(scene: Scene) -> None:
    bad = scene.batch(0, 9).model_copy(update={"timelines": [PackedTimeline(data=b"no")]})
    with pytest.raises(SpecError, match=r"timelines\[0\].data"):
        scene.sync(bad)


def test_the_newest_steps_of_a_run_are_kept(scene: Scene) -> None:
    steps = range(1, timelines.MOST_STEPS + 11)
    scene.sync(told(scene, 0, 0, *steps[:5]))
    scene.sync(told(scene, 0, 100, *steps[5:]), told(scene, 1, 0, steps[-1]))
    kept = {row["step"] for row in scene.rows(tables.timelines)}
    assert kept == set(steps[10:])


def test_timelines_go_with_the_series_of_the_ranks(
    scene: Scene, db: Database, clock: FakeClock
) -> None:
    scene.sync(told(scene, 0, 0, 20))
    scene.decide(state="failed")
    work = Clockwork(db, clock, Reconciler(db, clock), ages=Ages(None, timedelta(days=10)))
    clock.pass_s(9 * 86_400)
    work.forget()
    assert scene.rows(tables.timelines)
    clock.pass_s(2 * 86_400)
    work.forget()
    assert not scene.rows(tables.timelines)


def test_an_agent_of_the_release_before_is_not_told_of_orders_that_it_would_refuse(
    scene: Scene, db: Database
) -> None:
    scene.decide(orders=(NewOrder("checkpoint"), NewOrder("timeline")))
    with db.read() as connection:
        told_ = {
            protocol: assignments.wanted_of(connection, {"n1": protocol}, FixedParts())
            for protocol in (2, 3)
        }
    old, new = (told_[protocol]["n1"].assignments[0] for protocol in (2, 3))
    assert b'"timeline"' not in old
    assert b'"checkpoint", "args"' in old or b'"kind": "checkpoint"' in old
    assert b'"kind": "timeline"' in new
