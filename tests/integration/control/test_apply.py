"""A decision is written whole or not at all, by whoever saw the newest version."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select

from control.clock import Clock
from control.db import apply, asking, tables
from control.db.load import load
from control.db.sql.engine import Database
from control.decision import (
    AlertChange,
    AttemptEnd,
    CheckpointChange,
    Decision,
    IncidentChange,
    NewAttempt,
    NewChore,
    NewDrill,
    NewEvent,
    NewOrder,
    Placement,
)
from control.reconciler import Reconciler
from control.snapshot import RunSnapshot
from control.vitals import Vitals
from tests.integration.control.conftest import FakeClock
from tests.integration.control.scene import STORE, Scene, event, plan
from trainmaster.facts import Event
from trainmaster.orders import Drill


@pytest.fixture
def scene(db: Database, clock: FakeClock) -> Scene:
    made = Scene(db, clock)
    made.sync()
    made.submit()
    return made


def attempt(generation: int, *slots: int) -> NewAttempt:
    return NewAttempt(
        generation=generation,
        parent_generation=None,
        cause="first",
        cause_kind="start",
        plan=plan(),
        placements=tuple(Placement(rank, "n1", slot) for rank, slot in enumerate(slots)),
        checkpoint_every=10,
    )


def test_a_stale_decision_changes_nothing(scene: Scene) -> None:
    now = scene.clock.now()
    stale = Decision(run=scene.run, expected_version=1, next_look_at=now, state="failed")
    scene.decide(because="somebody was faster")
    with pytest.raises(apply.StaleVersionError), scene.db.write() as connection:
        apply.apply(connection, stale, touched=0, now=now)
    run = scene.row(tables.runs)
    assert (run["state"], run["version"], run["because"]) == ("queued", 2, "somebody was faster")


def test_a_slot_that_another_run_holds_rolls_the_whole_turn_back(scene: Scene) -> None:
    first = scene.run
    scene.begin(slots=(0, 1))
    second = scene.submit(name="beta")
    with pytest.raises(apply.SlotClashError):
        scene.decide(
            second,
            state="starting",
            new_attempt=attempt(1, 1, 2),
            events=(NewEvent("attempt_started", "x"),),
        )
    assert scene.row(tables.runs, id=second)["state"] == "queued"
    assert scene.rows(tables.attempts, run=second) == []
    assert {slot["run"] for slot in scene.rows(tables.slots)} == {first}
    scene.decide(second, state="starting", new_attempt=attempt(1, 2, 3))
    assert len(scene.rows(tables.slots)) == 4


def test_the_end_of_an_attempt_frees_its_slots_and_refuses_its_orders(scene: Scene) -> None:
    scene.begin()
    scene.decide(orders=(NewOrder("checkpoint"),))
    scene.decide(state="recovering", attempt_end=AttemptEnd(1, "failed", "rank 0 was killed"))
    assert scene.rows(tables.slots) == []
    order = scene.row(tables.orders)
    assert (order["state"], order["because"]) == ("refused", "superseded")
    ended = scene.row(tables.attempts)
    assert (ended["state"], ended["ended_because"]) == ("failed", "rank 0 was killed")
    assert ended["ended_at"] == scene.clock.now()


def test_a_decision_without_changes_only_moves_the_next_look(scene: Scene) -> None:
    before = scene.row(tables.runs)
    later = scene.clock.now() + timedelta(seconds=30)
    with scene.db.write() as connection:
        nothing = Decision(run=scene.run, expected_version=99, next_look_at=later)
        apply.apply(connection, nothing, touched=before["touched"], now=scene.clock.now())
    after = scene.row(tables.runs)
    assert (after["next_look_at"], after["version"]) == (later, before["version"])


def test_no_turn_sleeps_over_news(scene: Scene) -> None:
    scene.begin()
    touched = scene.row(tables.runs)["touched"]
    scene.sync(scene.batch(0, 10, events=[event("step_skipped", step=1)]))
    later = scene.clock.now() + timedelta(seconds=30)
    with scene.db.write() as connection:
        nothing = Decision(run=scene.run, expected_version=1, next_look_at=later)
        apply.apply(connection, nothing, touched=touched, now=scene.clock.now())
    assert scene.row(tables.runs)["next_look_at"] == scene.clock.now()


def test_an_alert_is_one_row_until_it_is_resolved(scene: Scene) -> None:
    def change(state: str) -> AlertChange:
        return AlertChange("r", "run", state, float("nan"), None, 7, "critical", 1)

    scene.begin()
    for state in ("pending", "firing", "resolved", "pending"):
        scene.decide(alerts=(change(state),))
    first, second = scene.rows(tables.alerts)
    assert (first["state"], second["state"]) == ("resolved", "pending")
    assert first["value"] == "NaN"
    with scene.db.read() as connection:
        loaded = load(connection, scene.run, now=scene.clock.now(), control_up_since=None)
    assert loaded is not None
    [alert] = loaded.snapshot.alerts
    assert alert.id == second["id"]
    assert alert.value is not None
    assert alert.value != alert.value


def test_an_incident_keeps_its_beginning(scene: Scene) -> None:
    opened = scene.clock.now()
    action = {"action": "rollback", "at": opened}
    scene.decide(incidents=(IncidentChange("i1", "r", "open", 0, 5, 5, "bad", (action,)),))
    scene.clock.pass_s(10)
    scene.decide(
        incidents=(
            IncidentChange(
                "i1", "r", "closed", 1, 5, 9, "good", (action,), {}, "resolved", closed=True
            ),
        )
    )
    row = scene.row(tables.incidents)
    assert (row["opened_at"], row["closed_at"]) == (opened, scene.clock.now())
    with scene.db.read() as connection:
        loaded = load(connection, scene.run, now=scene.clock.now(), control_up_since=None)
    assert loaded is not None
    assert loaded.snapshot.acted_at == {"r": opened}
    assert (loaded.snapshot.num_incidents, loaded.snapshot.incidents) == (1, ())


def committed(scene: Scene) -> Event:
    where = f"{STORE}/{scene.run}/g1-step10"
    return event("checkpoint_committed", step=10, location=where, manifest_sha256="sha256:0")


def test_a_checkpoint_that_was_pinned_meanwhile_is_not_retired(scene: Scene) -> None:
    scene.begin()
    scene.sync(scene.batch(0, 10, events=[committed(scene)]))
    checkpoint = f"{scene.run}-g1-s10"
    with scene.db.write() as connection:
        connection.execute(tables.checkpoints.update().values(pinned=True))
    with pytest.raises(apply.StaleVersionError):
        scene.decide(checkpoints=(CheckpointChange(checkpoint, "old", state="retired"),))
    assert scene.row(tables.checkpoints)["state"] == "committed"


def test_a_checkpoint_that_somebody_asked_to_restore_meanwhile_is_not_retired(scene: Scene) -> None:
    scene.begin()
    scene.decide(state="running")
    scene.sync(scene.batch(0, 10, events=[committed(scene)]))
    checkpoint = f"{scene.run}-g1-s10"
    with scene.db.write() as connection:
        wish = asking.Ask("restore", {"checkpoint": checkpoint}, actor="anna")
        asking.ask(connection, scene.run, wish, now=scene.clock.now())
    with pytest.raises(apply.StaleVersionError):
        scene.decide(checkpoints=(CheckpointChange(checkpoint, "old", state="retired"),))
    assert scene.row(tables.checkpoints)["state"] == "committed"


def test_a_checkpoint_tells_how_many_generations_began_from_it(scene: Scene) -> None:
    scene.begin()
    scene.sync(scene.batch(0, 10, events=[committed(scene)]))
    for generation in (2, 3):
        scene.begin(generation, parent=1, resumed_from_step=10, checkpoint=f"{scene.run}-g1-s10")
    assert scene.row(tables.checkpoints)["tries"] == 2


def test_the_same_chore_is_asked_for_once_while_it_waits(scene: Scene) -> None:
    chore = NewChore("verify", {"location": "file:///c/10", "checkpoint": "x"})
    scene.decide(chores=(chore,))
    scene.decide(chores=(chore,))
    assert len(scene.rows(tables.chores)) == 1


def test_a_sticky_drill_is_one_row_per_generation(scene: Scene) -> None:
    scene.begin()
    drill = Drill(id=3, fault="nan", rank=1, sticky=True)
    scene.decide(drills=(NewDrill(drill),))
    scene.sync(scene.batch(0, 10, events=[event("drill_fired", id=3, step=5, batch=5)] * 2))
    scene.begin(2)
    again = drill.model_copy(update={"batches": ((5, 9),)})
    scene.decide(drills=(NewDrill(again, generation=2),))
    with scene.db.read() as connection:
        loaded = load(connection, scene.run, now=scene.clock.now(), control_up_since=None)
    assert loaded is not None
    first, second = loaded.snapshot.drills
    assert (first.generation, first.fired) == (1, ((1, 5, 5),))
    assert (second.generation, second.fired) == (2, ())
    assert second.drill.batches == ((5, 9),)


class BrokenBrain:
    """Fails for one run, and lets the others rest."""

    def __init__(self, broken: str, clock: Clock) -> None:
        self.broken = broken
        self.clock = clock
        self.seen: list[str] = []

    def __call__(self, snapshot: RunSnapshot, *, now: object, judge: object) -> Decision:
        self.seen.append(snapshot.run.id)
        if snapshot.run.id == self.broken:
            raise RuntimeError("a bug")
        later = self.clock.now() + timedelta(seconds=5)
        return Decision(snapshot.run.id, snapshot.run.version, later)


def test_a_run_whose_turn_fails_is_pushed_back_and_does_not_stop_the_others(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    broken, fine = scene.run, scene.submit(name="beta")
    brain, vitals = BrokenBrain(broken, scene.clock), Vitals()
    reconciler = Reconciler(scene.db, scene.clock, decide=brain, vitals=vitals)
    reconciler.tick()
    assert sorted(brain.seen) == sorted([broken, fine])
    assert "a bug" in caplog.text
    assert scene.row(tables.runs, id=broken)["next_look_at"] > scene.clock.now()
    reconciler.tick()
    assert len(brain.seen) == 2, "neither is due"
    scene.clock.pass_s(31)
    reconciler.tick()
    assert len(brain.seen) == 4
    assert (vitals.turns()["failed"], vitals.turns()["unchanged"]) == (2, 2)


def test_a_turn_that_was_overtaken_is_taken_again(scene: Scene) -> None:
    class Overtaken:
        turns = 0

        def __call__(self, snapshot: RunSnapshot, *, now: object, judge: object) -> Decision:
            self.turns += 1
            if self.turns == 1:
                scene.decide(because="somebody else")
            later = scene.clock.now() + timedelta(seconds=5)
            return Decision(snapshot.run.id, snapshot.run.version, later, because="mine")

    brain, vitals = Overtaken(), Vitals()
    reconciler = Reconciler(scene.db, scene.clock, decide=brain, vitals=vitals)
    reconciler.tick()
    assert scene.row(tables.runs)["because"] == "somebody else"
    reconciler.tick()
    with scene.db.read() as connection:
        assert connection.scalar(select(tables.runs.c.because)) == "mine"
    assert (vitals.turns()["overtaken"], vitals.turns()["changed"]) == (1, 1)
