"""Facts are sent at least once and stored once, and a superseded generation changes nothing."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control.db import failures, queries, tables
from control.db.samples import samples
from control.db.samples.segments import whole
from control.db.sql.engine import Database
from tests.integration.control.conftest import FakeClock
from tests.integration.control.scene import AGENT, Scene, columns, event, plan, same
from trainmaster.facts import Batch, Event
from trainmaster.interval import PRIOR_NODE_S
from trainmaster.wire import Running


@pytest.fixture
def scene(db: Database, clock: FakeClock) -> Scene:
    made = Scene(db, clock)
    made.sync()
    made.submit()
    made.begin()
    return made


def losses(scene: Scene, generation: int = 1) -> list[tuple[int, float]]:
    with scene.db.read() as connection:
        found = samples.read(connection, scene.run, "loss", whole([generation]))
    return list(zip(found.steps.tolist(), found.values.tolist(), strict=True))


def test_a_batch_is_stored_with_its_cursor(scene: Scene) -> None:
    stored = scene.sync(scene.batch(0, 90, samples=columns([1, 2], loss=[5.0, 4.0])))
    assert stored.cursors == {f"{scene.run}/1/0": 90}
    assert losses(scene) == [(1, 5.0), (2, 4.0)]


def test_the_same_batch_twice_is_stored_once_and_the_cursor_is_told(scene: Scene) -> None:
    batch = scene.batch(0, 90, samples=columns([1], loss=[5.0]))
    scene.sync(batch)
    assert scene.sync(batch).cursors == {f"{scene.run}/1/0": 90}
    assert losses(scene) == [(1, 5.0)]


def test_a_batch_after_a_gap_is_not_stored(scene: Scene) -> None:
    answer = scene.sync(scene.batch(50, 90, samples=columns([2], loss=[4.0])))
    assert answer.cursors == {f"{scene.run}/1/0": 0}
    assert losses(scene) == []


def test_an_empty_batch_asks_for_the_cursor(scene: Scene) -> None:
    scene.sync(scene.batch(0, 90, samples=columns([1], loss=[5.0])))
    assert scene.sync(scene.batch(0, 0)).cursors == {f"{scene.run}/1/0": 90}


def test_two_batches_of_one_stream_in_one_sync_follow_each_other(scene: Scene) -> None:
    scene.sync(
        scene.batch(0, 90, samples=columns([1], loss=[5.0])),
        scene.batch(90, 120, samples=columns([2], loss=[4.0])),
    )
    assert losses(scene) == [(1, 5.0), (2, 4.0)]


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(sends=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5)), max_size=20))
def test_whatever_is_resent_in_whatever_order_each_step_is_there_once(
    scene: Scene, sends: list[tuple[int, int]]
) -> None:
    # A fresh rank stream per example would need a fresh run: continue on the cursor instead.
    start = scene.sync(scene.batch(0, 0)).cursors[f"{scene.run}/1/0"]
    for begin, count in sends:
        first = start + begin
        steps = list(range(first + 1, first + count + 1))
        scene.sync(
            scene.batch(
                first, first + count, samples=columns(steps, loss=[float(s) for s in steps])
            )
        )
    end = scene.sync(scene.batch(0, 0)).cursors[f"{scene.run}/1/0"]
    assert losses(scene) == [(step, float(step)) for step in range(1, end + 1)]


def test_nan_infinity_and_not_measured_stay_what_they_are(scene: Scene) -> None:
    told = [math.nan, math.inf, -math.inf, None, 1.5]
    scene.sync(scene.batch(0, 9, samples=columns([1, 2, 3, 4, 5], grad_norm=told)))
    with scene.db.read() as connection:
        found = samples.read(connection, scene.run, "grad_norm", whole([1]))
    absent = samples.chunks.missing(found.values).tolist()
    read = [
        None if unknown else value
        for value, unknown in zip(found.values.tolist(), absent, strict=True)
    ]
    assert all(same(one, other) for one, other in zip(told, read, strict=True)), read


def test_a_stream_of_a_rank_that_is_not_here_is_not_this_nodes_to_tell(scene: Scene) -> None:
    answer = scene.sync(scene.batch(0, 9, samples=columns([1], loss=[1.0])), node="n2")
    assert answer.cursors == {}
    assert losses(scene) == []


def test_running_tells_the_store_and_the_pids(scene: Scene) -> None:
    running = Running(run=scene.run, generation=1, store="10.0.0.1:4000", ranks={0: 71, 1: 72})
    assert scene.sync(running=[running]).touched == {scene.run}
    assert scene.row(tables.attempts)["store"] == "10.0.0.1:4000"
    assert [rank["pid"] for rank in scene.rows(tables.ranks)] == [71, 72]
    assert scene.sync(running=[running]).touched == frozenset(), "a level told again is no news"


def test_events_move_a_rank_forwards_only(scene: Scene) -> None:
    scene.sync(
        scene.agent_batch(
            0, 10, event("rank_exited", run=scene.run, generation=1, rank=0, exit_code=0)
        )
    )
    scene.sync(scene.batch(0, 10, events=[event("rank_ready", step=0)]))
    rank = scene.row(tables.ranks, rank=0)
    assert (rank["state"], rank["exit_code"]) == ("exited", 0)


def test_a_rank_that_met_the_others_before_its_start_was_told_has_its_process(scene: Scene) -> None:
    started = event("rank_started", run=scene.run, generation=1, rank=0, pid=71)
    scene.sync(scene.batch(0, 10, events=[event("rank_ready")]), scene.agent_batch(0, 10, started))
    rank = scene.row(tables.ranks, rank=0)
    assert (rank["state"], rank["pid"], rank["boot"]) == ("ready", 71, "b1")
    scene.sync(scene.batch(0, 10, rank=1, events=[event("rank_ready")]))
    scene.sync(running=[Running(run=scene.run, generation=1, ranks={1: 72})])
    assert scene.row(tables.ranks, rank=1)["pid"] == 72


def test_the_attempt_is_ready_when_its_last_rank_is(scene: Scene) -> None:
    scene.sync(scene.batch(0, 10, events=[event("rank_ready")]))
    assert scene.row(tables.attempts)["ready_at"] is None
    scene.sync(scene.batch(0, 10, rank=1, events=[event("rank_ready")]))
    assert scene.row(tables.attempts)["ready_at"] == scene.clock.now()


def committed(scene: Scene, step: int, generation: int = 1, **more: object) -> Event:
    return event(
        "checkpoint_committed",
        step=step,
        location=f"file:///checkpoints/{scene.run}/g{generation}-step{step}",
        manifest_sha256="sha256:" + "0" * 64,
        bytes=10,
        files=2,
        **more,
    )


def test_a_committed_checkpoint_is_indexed(scene: Scene) -> None:
    scene.sync(scene.batch(0, 10, events=[committed(scene, 10)]))
    found = scene.row(tables.checkpoints)
    assert found["id"] == f"{scene.run}-g1-s10"
    assert (found["state"], found["abandoned"], found["bytes"]) == ("committed", False, 10)


@pytest.mark.parametrize(
    "where",
    [
        "file:///checkpoints/{run}/g1-step11",
        "file:///checkpoints/{run}/g2-step10",
        "file:///checkpoints/rffffffffff/g1-step10",
        "file:///checkpoints/{run}/../rffffffffff/../{run}/g1-step10",
        "file:///checkpoints/%2e%2e/{run}/g1-step10",
        "memory://rffffffffff/g1-step10",
        "file:///etc",
        "g1-step10",
        "",
    ],
)
def test_a_checkpoint_is_believed_only_in_its_own_folder_of_its_own_run(
    scene: Scene, where: str
) -> None:
    told = committed(scene, 10)
    forged = told.model_copy(
        update={"data": {**told.data, "location": where.format(run=scene.run)}}
    )
    scene.sync(scene.batch(0, 10, events=[forged]))
    assert scene.rows(tables.checkpoints) == []
    kept = event("state_kept", **{**forged.data, "stored": False})
    scene.sync(scene.batch(10, 20, events=[kept]))
    assert scene.rows(tables.checkpoints) == []


def test_what_a_superseded_generation_commits_is_abandoned(scene: Scene) -> None:
    scene.begin(2)
    scene.sync(
        scene.batch(0, 10, samples=columns([7], loss=[1.0]), events=[committed(scene, 10)]),
        running=[Running(run=scene.run, generation=1, store="10.0.0.1:1", ranks={})],
    )
    assert scene.row(tables.checkpoints)["abandoned"] is True
    assert losses(scene, 1) == [(7, 1.0)], "it stays as history"
    attempts = scene.rows(tables.attempts)
    assert [attempt["store"] for attempt in attempts] == [None, None]
    assert attempts[1]["last_step"] is None


def test_orders_are_acknowledged_once_and_superseded_ones_stay_refused(scene: Scene) -> None:
    from control.decision import NewOrder

    scene.decide(orders=(NewOrder("checkpoint"), NewOrder("hold")))
    scene.sync(
        scene.batch(
            0,
            10,
            events=[
                event("order_received", seq=1),
                event("order_applied", seq=1, step=12),
                event("order_refused", seq=1, step=13, because="late"),
            ],
        )
    )
    first, second = scene.rows(tables.orders)
    assert (first["seq"], first["state"], first["step"]) == (1, "applied", 12)
    assert (second["seq"], second["state"]) == (2, "sent")
    scene.begin(2)
    scene.sync(scene.batch(10, 20, events=[event("order_applied", seq=2, step=14)]))
    assert scene.row(tables.orders, seq=2)["state"] == "refused"
    assert scene.row(tables.orders, seq=2)["because"] == "superseded"


def test_an_agent_cannot_speak_for_runs_that_are_not_on_its_node(scene: Scene) -> None:
    batch = Batch(
        stream=AGENT,
        from_offset=0,
        to_offset=9,
        events=[event("rank_exited", run=scene.run, generation=1, rank=0, exit_code=9)],
    )
    scene.sync(batch, node="n2")
    assert scene.row(tables.ranks, rank=0)["state"] == "assigned"
    assert scene.row(tables.events, kind="rank_exited")["run"] is None


def test_an_agent_cannot_commit_a_checkpoint_in_a_ranks_name(scene: Scene) -> None:
    told = committed(scene, 10, run=scene.run, generation=1)
    scene.sync(scene.agent_batch(0, 9, told))  # type: ignore[arg-type]
    assert scene.rows(tables.checkpoints) == []


def test_text_that_no_database_keeps_is_kept_as_far_as_it_can_be(scene: Scene) -> None:
    told = event("rank_failed", because="a\0b\ud800c", values=[math.nan, math.inf])
    batch = Batch.model_construct(
        stream=f"{scene.run}/1/0", from_offset=0, to_offset=9, events=[told],
        samples=None, packed=None,
    )  # fmt: skip
    from control.db import facts
    from control.db.facts import Said
    from trainmaster.wire import Sync

    sync = Sync.model_construct(
        boot="b1", version="0", sent_at=scene.clock.now(), address="h", metrics_port=None, slots=4,
        devices=[], labels={}, profile={}, running=[], batches=[batch], protocol=1,
    )  # fmt: skip
    with scene.db.write() as connection:
        facts.store(connection, [Said.of("n1", sync)], now=scene.clock.now())
    failure = scene.row(tables.ranks, rank=0)["failure"]
    assert failure["because"] == "a\ufffdb\ufffdc"
    assert failure["values"] == ["NaN", "Infinity"]


def test_a_node_keeps_its_cordon_and_the_day_it_first_came(scene: Scene) -> None:
    from control.db import asking

    first = scene.row(tables.nodes)["first_seen_at"]
    with scene.db.write() as connection:
        asking.set_cordoned(
            connection, "n1", cordoned=True, actor="ann", why="", now=scene.clock.now()
        )
    scene.clock.pass_s(5)
    scene.sync(boot="b2")
    node = scene.row(tables.nodes)
    assert (node["cordoned"], node["boot"], node["first_seen_at"]) == (True, "b2", first)
    assert node["last_seen_at"] == scene.clock.now()


@pytest.mark.parametrize("sample_first", [True, False])
def test_a_checkpoint_knows_the_loss_of_its_step_whichever_is_told_first(
    scene: Scene, *, sample_first: bool
) -> None:
    sample = {"samples": columns([9, 10, 11], loss=[3.0, 2.5, 2.0])}
    commit = {"events": [committed(scene, 10)]}
    first, second = (sample, commit) if sample_first else (commit, sample)
    scene.sync(scene.batch(0, 10, **first))  # type: ignore[arg-type]
    scene.sync(scene.batch(10, 20, **second))  # type: ignore[arg-type]
    assert scene.row(tables.checkpoints)["loss"] == 2.5


def kept(scene: Scene, step: int, *, stored: bool = False, generation: int = 1) -> object:
    return event(
        "state_kept",
        step=step,
        location=f"memory://{scene.run}/g{generation}-step{step}",
        manifest_sha256="sha256:" + "1" * 64,
        bytes=10,
        files=2,
        stored=stored,
    )


def test_of_states_kept_in_memory_alone_the_newest_is_known(scene: Scene) -> None:
    scene.sync(scene.batch(0, 10, events=[kept(scene, 5), kept(scene, 6)]))
    states = {row["step"]: row["state"] for row in scene.rows(tables.checkpoints)}
    assert states == {5: "retired", 6: "committed"}
    scene.sync(scene.batch(10, 20, events=[committed(scene, 8), kept(scene, 8, stored=True)]))
    states = {row["step"]: row["state"] for row in scene.rows(tables.checkpoints)}
    assert states == {5: "retired", 6: "retired", 8: "committed"}
    assert scene.rows(tables.checkpoints)[-1]["location"].startswith("file:")


def test_what_could_not_be_stored_at_first_is_known_where_it_was_stored(scene: Scene) -> None:
    scene.sync(scene.batch(0, 10, events=[kept(scene, 5)]))
    assert scene.row(tables.checkpoints)["location"].startswith("memory:")
    scene.sync(scene.batch(10, 20, events=[committed(scene, 5)]))
    assert scene.row(tables.checkpoints)["location"].startswith("file:")
    assert scene.row(tables.checkpoints)["state"] == "committed"


def test_a_state_that_a_node_dropped_is_used_no_more(scene: Scene) -> None:
    scene.sync(scene.batch(0, 10, events=[committed(scene, 4), kept(scene, 5)]))
    dropped = event("state_dropped", step=5, because="the ranks have ended in order")
    scene.sync(scene.batch(10, 20, events=[dropped]))
    found = {row["step"]: row for row in scene.rows(tables.checkpoints)}
    assert (found[4]["state"], found[5]["state"]) == ("committed", "retired")
    assert found[5]["because"] == "the ranks have ended in order"


def test_the_interval_that_ranks_chose_is_the_attempts(scene: Scene) -> None:
    chosen = event("interval_chosen", step=30, every_steps=40, before=20)
    scene.sync(scene.batch(0, 10, events=[chosen]))
    assert scene.row(tables.attempts)["checkpoint_every"] == 40
    with scene.db.read() as connection:
        told = queries.show(connection, scene.run)["checkpoint_interval"]
    assert (told["every_steps"], told["from_step"]) == (40, 30)


def test_the_interval_of_a_beginning_is_counted_from_the_first_step(scene: Scene) -> None:
    scene.sync(scene.batch(0, 10, events=[event("interval_chosen", step=20, every_steps=40)]))
    with scene.db.read() as connection:
        assert queries.show(connection, scene.run)["checkpoint_interval"]["from_step"] == 0


def test_what_the_fleet_has_met_says_when_to_expect_a_failure(scene: Scene) -> None:
    with scene.db.read() as connection:
        quiet_s = failures.expected_after_s(connection, plan(), now=scene.clock.now())
    assert quiet_s == pytest.approx(PRIOR_NODE_S, rel=0.01)
    for generation in (2, 3, 4):
        scene.begin(generation)  # each ends the one before as failed
    with scene.db.read() as connection:
        seen_s = failures.expected_after_s(connection, plan(), now=scene.clock.now())
    assert seen_s == pytest.approx(PRIOR_NODE_S / 4, rel=0.01)
