"""Syncs that arrive together are stored together, and none suffers for another."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from control import auth
from control.db import tables
from control.db.facts import Said
from control.db.samples import samples
from control.db.samples.segments import whole
from control.db.sql.engine import Database
from control.group_commit import GroupCommit
from tests.integration.control.conftest import FakeClock
from tests.integration.control.scene import Scene, columns, event
from trainmaster.errors import TrainmasterError, UnauthenticatedError
from trainmaster.facts import Batch
from trainmaster.wire import PROTOCOL_VERSION, Running, Sync, SyncReply

NODES = [f"n{number:02}" for number in range(40)]


class Plane:
    """The group commit of one process; everybody has the same token."""

    def __init__(self, db: Database, clock: FakeClock) -> None:
        self.scene = Scene(db, clock)
        self.woken = 0
        self.syncs = GroupCommit(db, clock, self._wake)
        with db.write() as connection:
            self.token_id, token = auth.create_token(
                connection, role="admin", name=None, node=None, actor="test", now=clock.now()
            )
        self.token_sha256 = auth.digest(token)

    def _wake(self) -> None:
        self.woken += 1

    async def say(self, node: str, *batches: Batch, **more: Any) -> SyncReply:
        said = Said.of(node, self.message(*batches, **more))
        answer = await self.syncs.exchange(said, self.token_sha256)
        return SyncReply.model_validate_json(answer)

    def message(self, *batches: Batch, **more: Any) -> Sync:
        given = {"boot": "b1", "version": "0", "address": "h", "slots": 4, **more}
        return Sync(sent_at=self.scene.clock.now(), batches=list(batches), **given)


@pytest.fixture
def here(db: Database, clock: FakeClock) -> Iterator[Plane]:
    made = Plane(db, clock)
    yield made
    made.syncs.close()


def together(*calls: Coroutine[Any, Any, Any]) -> list[Any]:
    async def gathered() -> list[Any]:
        return list(await asyncio.gather(*calls, return_exceptions=True))

    return asyncio.run(gathered())


def test_many_nodes_share_a_transaction_and_each_has_its_answer(here: Plane) -> None:
    replies = together(*(here.say(node) for node in NODES))
    assert all(reply.protocol == PROTOCOL_VERSION for reply in replies)
    assert [row["id"] for row in here.scene.rows(tables.nodes)] == NODES
    assert here.syncs.counts.members == len(NODES)
    assert here.syncs.counts.groups <= 3


def test_heartbeats_of_nodes_that_are_known_renew_their_time_and_nothing_else(
    here: Plane, clock: FakeClock
) -> None:
    together(*(here.say(node) for node in NODES))
    before = here.scene.rows(tables.nodes)
    clock.pass_s(3)
    together(*(here.say(node) for node in NODES))
    after = here.scene.rows(tables.nodes)
    assert after == [{**row, "last_seen_at": clock.now()} for row in before]


@pytest.mark.parametrize(
    "changed",
    [
        {"boot": "b2"},
        {"version": "1"},
        {"address": "elsewhere"},
        {"slots": 8},
        {"labels": {"a": "b"}},
        {"metrics_port": 9},
    ],
)
def test_what_a_node_says_of_itself_anew_is_stored(here: Plane, changed: dict[str, Any]) -> None:
    together(here.say("n1"))
    together(here.say("n1", **changed))
    row = here.scene.row(tables.nodes)
    assert {name: row[name] for name in changed} == changed


def test_what_another_control_plane_has_heard_since_is_not_taken_for_known(
    here: Plane, db: Database, clock: FakeClock
) -> None:
    other = Plane(db, clock)
    together(here.say("n1", boot="b1"))
    together(other.say("n1", boot="b2", slots=8))
    assert here.scene.row(tables.nodes)["slots"] == 8
    together(here.say("n1", boot="b1"))
    assert here.scene.row(tables.nodes)["boot"] == "b1"
    other.syncs.close()


def test_two_syncs_of_one_node_are_stored_one_after_the_other(here: Plane) -> None:
    together(here.say("n1"))
    here.scene.submit()
    here.scene.begin()
    first = here.scene.batch(0, 10, samples=columns([1, 2], loss=[2.0, 1.0]))
    second = here.scene.batch(10, 20, samples=columns([3], loss=[0.5]))
    replies = together(
        here.say("n1", first), here.say("n1", second), here.say("n1", first), here.say("n1", second)
    )
    assert [reply.cursors[first.stream] for reply in replies] == [10, 20, 20, 20]
    with here.scene.db.read() as connection:
        found = samples.read(connection, here.scene.run, "loss", whole([1]))
    assert found.steps.tolist() == [1, 2, 3]
    assert here.woken == 0, "samples alone hasten no turn"
    together(here.say("n1", here.scene.batch(20, 30, events=[event("step_skipped", step=3)])))
    assert here.woken == 1


def test_one_that_cannot_be_stored_fails_alone(here: Plane) -> None:
    broken = Said("n99", here.message().model_copy(update={"version": None}), {})
    *replies, failed = together(
        *(here.say(node) for node in NODES), here.syncs.exchange(broken, here.token_sha256)
    )
    assert all(isinstance(reply, SyncReply) for reply in replies)
    assert isinstance(failed, Exception)
    assert not isinstance(failed, TrainmasterError)
    assert [row["id"] for row in here.scene.rows(tables.nodes)] == NODES


def test_a_token_that_has_ended_stores_nothing_though_its_request_was_let_in(
    here: Plane, db: Database, clock: FakeClock
) -> None:
    with db.write() as connection:
        _, other = auth.create_token(
            connection, role="agent", name=None, node="n2", actor="test", now=clock.now()
        )
        auth.revoke_token(connection, here.token_id, actor="test", now=clock.now())
    said = Said.of("n2", here.message())
    refused, answer = together(here.say("n1"), here.syncs.exchange(said, auth.digest(other)))
    assert isinstance(refused, UnauthenticatedError)
    assert SyncReply.model_validate_json(answer).cursors == {}
    assert [row["id"] for row in here.scene.rows(tables.nodes)] == ["n2"]


def test_events_levels_and_samples_of_a_group_each_find_their_run(here: Plane) -> None:
    together(here.say("n1"), here.say("n2"))
    runs = {}
    for node in ("n1", "n2"):
        runs[node] = here.scene.submit()
        here.scene.begin(node=node)
    told = []
    for node, run in runs.items():
        here.scene.run = run
        batch = here.scene.batch(
            0, 10, samples=columns([1], loss=[float(node[1])]), events=[event("rank_ready")]
        )
        running = Running(run=run, generation=1, store="h:1", ranks={0: 10, 1: 11})
        told.append(here.say(node, batch, running=[running]))
    replies = together(*told)
    for (node, run), reply in zip(runs.items(), replies, strict=True):
        (assignment,) = reply.assignments
        assert (assignment.run, assignment.store, assignment.hosts_store) == (run, "h:1", True)
        assert [each.rank for each in assignment.ranks] == [0, 1]
        states = [row["state"] for row in here.scene.rows(tables.ranks, run=run)]
        assert states == ["ready", "started"]
        attempt = here.scene.row(tables.attempts, run=run)
        assert (attempt["first_step"], attempt["last_step"]) == (1, 1)
        with here.scene.db.read() as connection:
            found = samples.read(connection, run, "loss", whole([1]))
        assert found.values.tolist() == [float(node[1])]
        assert reply.next_sync_s < 1  # rank 1 is still starting


def test_a_piece_of_work_goes_to_one_node_of_a_group(here: Plane) -> None:
    from control.db.fleet import chores

    with here.scene.db.write() as connection:
        for number in range(3):
            args = {"workload": f"w{number}"}
            chores.ask(connection, "describe", args, now=here.scene.clock.now())
    replies = together(*(here.say(node) for node in NODES))
    given = [chore.id for reply in replies for chore in reply.chores]
    assert sorted(given) == [1, 2, 3]
    again = together(*(here.say(node) for node in NODES))
    assert [reply.chores for reply in again] == [reply.chores for reply in replies]


def test_nodes_without_ranks_come_back_less_often_in_a_large_fleet(
    here: Plane, clock: FakeClock
) -> None:
    (reply,) = together(here.say("n1"))
    assert reply.next_sync_s == 1.0
    with here.scene.db.write() as connection:
        row = here.scene.row(tables.nodes)
        connection.execute(
            tables.nodes.insert(), [{**row, "id": f"x{number}"} for number in range(2500)]
        )
    clock.pass_s(10)
    (reply,) = together(here.say("n1"))
    assert 1.9 < reply.next_sync_s < 2.1
    here.scene.submit()
    here.scene.begin()
    running = Running(run=here.scene.run, generation=1, store="h:1", ranks={0: 10, 1: 11})
    ready = [here.scene.batch(0, 10, rank=rank, events=[event("rank_ready")]) for rank in (0, 1)]
    together(here.say("n1", *ready, running=[running]))
    (reply,) = together(here.say("n1", running=[running]))
    assert reply.next_sync_s == 1.0
