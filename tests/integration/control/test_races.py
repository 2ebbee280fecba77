"""Many at once: what is told twice is stored once, and what two want goes to one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

from control.clock import SystemClock
from control.db import asking, external, tables
from control.db.external import Told
from control.db.samples import samples
from control.db.samples.segments import whole
from control.db.sql.engine import Database
from control.reconciler import Reconciler
from tests.integration.control.scene import STORE, Scene, columns, event, spec
from trainmaster.errors import ConflictError, UnavailableError


def at_once(calls: int, call: Callable[[int], Any]) -> list[Any]:
    def guarded(number: int) -> Any:
        try:
            return call(number)
        except (ConflictError, UnavailableError) as error:
            return error

    with ThreadPoolExecutor(calls) as pool:
        return list(pool.map(guarded, range(calls)))


def test_the_same_sync_from_many_threads_is_stored_once(db: Database) -> None:
    scene = Scene(db, SystemClock())
    at_once(6, lambda _: scene.sync())
    assert len(scene.rows(tables.nodes)) == 1
    scene.submit()
    scene.begin()
    batch = scene.batch(
        0, 10, samples=columns([1, 2], loss=[2.0, 1.0]), events=[event("step_skipped", step=2)]
    )
    answers = at_once(6, lambda _: scene.sync(batch))
    assert {answer.cursors[batch.stream] for answer in answers} == {10}
    with db.read() as connection:
        found = samples.read(connection, scene.run, "loss", whole([1]))
    assert found.steps.tolist() == [1, 2]
    assert len(scene.rows(tables.events, kind="step_skipped")) == 1


def test_an_alert_that_is_handed_to_all_control_planes_at_once_is_one_and_none_refuses(
    db: Database,
) -> None:
    scene = Scene(db, SystemClock())
    scene.submit()
    scene.begin()
    scene.decide(state="running")
    now = SystemClock().now()
    labels = {"run": scene.run, "trainmaster_action": "checkpoint"}
    told = Told("f1", now, None, "hot", labels, {}, "checkpoint")
    together = Barrier(4)

    def receive(_: int) -> str:
        together.wait()
        [outcome] = external.receive(db, [told], allowed=["checkpoint"], actor="am", now=now)
        return outcome

    answers = at_once(4, receive)
    assert sorted(answers)[1:] == ["known"] * 3
    assert sorted(answers)[0].startswith("asked for: checkpoint")
    assert len(scene.rows(tables.external_alerts)) == 1
    assert len(scene.rows(tables.requests, kind="checkpoint")) == 1


def test_a_run_that_is_submitted_at_two_control_planes_at_once_is_one(db: Database) -> None:
    together = Barrier(4)

    def submit(_: int) -> tuple[str, bool]:
        together.wait()
        with db.write() as connection:
            return asking.submit(
                connection, spec(), store=STORE, actor="ann", key="k", now=SystemClock().now()
            )

    answers = at_once(4, submit)
    [(run, _)] = [answer for answer in answers if answer[1]]
    assert {answer[0] for answer in answers} == {run}
    scene = Scene(db, SystemClock())
    assert len(scene.rows(tables.runs)) == len(scene.rows(tables.events)) == 1


def test_events_of_a_run_are_numbered_in_the_order_in_which_they_become_visible(
    db: Database,
) -> None:
    scene = Scene(db, SystemClock())
    scene.sync()
    scene.submit()
    scene.begin()
    seen: list[int] = []

    def tell(rank: int) -> None:
        for turn in range(10):
            scene.sync(scene.batch(turn, turn + 1, rank=rank, events=[event("step_skipped")]))

    def look(_: int) -> None:
        from control.db import history

        for _turn in range(30):
            with db.read() as connection:
                after = seen[-1] if seen else 0
                new = history.events_of(connection, scene.run, after=after)
            seen.extend(each["id"] for each in new)

    with ThreadPoolExecutor(3) as pool:
        work = [pool.submit(tell, 0), pool.submit(tell, 1), pool.submit(look, 0)]
        for each in work:
            each.result()
    look(0)
    assert seen == [each["id"] for each in scene.rows(tables.events, run=scene.run)]


def test_two_reconcilers_at_once_start_a_run_once(db: Database) -> None:
    clock = SystemClock()
    scene = Scene(db, clock)
    scene.sync()
    run = scene.submit()
    from control.db.fleet import chores
    from tests.integration.control.api import INFO

    with db.write() as connection:
        args = chores.workload_args("somewhere:workload", {}, "workload")
        chore = chores.ask(connection, "describe", args, now=clock.now())
        chores.answer(connection, "n1", {"id": chore, "ok": True, "result": INFO}, now=clock.now())
    reconcilers = [Reconciler(db, clock, up_since=clock.now()) for _ in range(4)]
    at_once(4, lambda number: reconcilers[number].tick())
    assert scene.row(tables.runs, id=run)["generation"] == 1
    assert len(scene.rows(tables.attempts)) == 1
    assert len(scene.rows(tables.slots)) == 2
