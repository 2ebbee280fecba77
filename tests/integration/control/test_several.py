"""Real control planes on one PostgreSQL: one stops in good order and nobody is refused, one halts
and is followed, and clients that know several addresses notice nothing.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime

import httpx
import pytest

from tests.integration.control.api import INFO, SPEC
from tests.services.planes import ControlPlane, control_planes, epoch, leader_pid, rows, until
from tests.services.postgres import PostgresCluster
from trainmaster.client import Client
from trainmaster.errors import TrainmasterError
from trainmaster.facts import Batch, Event
from trainmaster.ids import agent_stream
from trainmaster.wire import Chore, Sync

DRAIN_S = 600
"""For ever: the tests end it by a second signal, at a moment that they choose."""

AGENT = agent_stream("0001")


@pytest.fixture(scope="module")
def database(postgres_cluster: PostgresCluster) -> Iterator[str]:
    name = postgres_cluster.create_database()
    yield postgres_cluster.url(name)
    postgres_cluster.drop_database(name)


@pytest.fixture(scope="module")
def planes(
    database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sequence[ControlPlane]]:
    folder = tmp_path_factory.mktemp("planes")
    with control_planes(folder, database, 2, TRAINMASTER_DRAIN_S=str(DRAIN_S)) as running:
        yield running


@pytest.fixture
def both(planes: Sequence[ControlPlane]) -> Sequence[ControlPlane]:
    """Both planes, started again if the test before ended one."""
    for plane in planes:
        if not plane.runs:
            plane.start()
        plane.wait_ready()
    return planes


def leader_of(planes: Sequence[ControlPlane], database: str) -> ControlPlane:
    pid = until(lambda: leader_pid(database), what="somebody to lead")
    [leader] = [plane for plane in planes if plane.pid == pid]
    with Client(leader.url, leader.token) as api:
        until(lambda: api.get("/v1/about")["leads"], what="it to say so")
    return leader


class Callers:
    """A node that syncs and a person who reads and asks, all the time, at any of the planes."""

    def __init__(self, planes: Sequence[ControlPlane]) -> None:
        urls = ",".join(plane.url for plane in planes)
        token = planes[0].token
        with Client(urls, token) as admin:
            agent = admin.post("/v1/tokens", {"role": "agent", "node": "n1"})["token"]
        self.troubles: list[TrainmasterError] = []
        self.answers = 0
        self._stopping = threading.Event()
        # At least one of these two begins at each plane.
        self._clients = [Client(urls, agent), Client(",".join(reversed(urls.split(","))), agent)]
        self._clients.append(Client(urls, token))
        work = (self._sync, self._sync, self._read)
        self._threads = [
            threading.Thread(target=self._repeat, args=(do, client))
            for do, client in zip(work, self._clients, strict=True)
        ]

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        until(lambda: self.answers > 10)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        for client in self._clients:
            client.close()

    def _repeat(self, do: Callable[[Client], object], client: Client) -> None:
        while not self._stopping.wait(0.005):
            try:
                do(client)
                self.answers += 1
            except TrainmasterError as error:
                self.troubles.append(error)

    def _sync(self, client: Client) -> None:
        client.sync("n1", sync_of())

    def _read(self, client: Client) -> None:
        client.get("/v1/nodes")


class Node:
    """A node that is heard, and describes workloads once it may."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.may_describe = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._live)

    def __enter__(self) -> Node:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._client.close()

    def _live(self) -> None:
        stored, done = 0, list[Event]()
        while not self._stopping.wait(0.1):
            batch = Batch(stream=AGENT, from_offset=stored, to_offset=stored + 10, events=done)
            reply = self._client.sync("n2", sync_of([batch] if done else []))
            stored, done = reply.cursors.get(AGENT, stored), []
            if self.may_describe.is_set():
                done = [chore_done(chore) for chore in reply.chores]


def sync_of(batches: Sequence[Batch] = ()) -> Sync:
    at = datetime.now(UTC)
    return Sync(boot="b", version="1", sent_at=at, address="h", slots=4, batches=list(batches))


def chore_done(chore: Chore) -> Event:
    data = {"id": chore.id, "ok": True, "result": INFO, "problems": []}
    return Event(kind="chore_done", at=datetime.now(UTC), data=data)


def test_a_leader_that_halts_without_ending_is_followed_and_what_it_believes_is_refused(
    both: Sequence[ControlPlane], database: str
) -> None:
    leader = leader_of(both, database)
    before = epoch(database)
    leader.signal(signal.SIGSTOP)
    try:
        until(lambda: leader_pid(database) not in {None, leader.pid}, what="another to lead")
    finally:
        os.kill(leader.pid, signal.SIGCONT)
    assert epoch(database) > before
    until(lambda: "no longer leads" in leader.log.read_text(), what="the first to notice")
    leader.wait_ready()


def test_one_that_is_asked_to_stop_hands_over_and_refuses_nobody(
    both: Sequence[ControlPlane], database: str
) -> None:
    leader = leader_of(both, database)
    [other] = [plane for plane in both if plane is not leader]
    with Client(other.url, other.token) as admin:
        agent = admin.post("/v1/tokens", {"role": "agent", "node": "n2"})["token"]
    asked = {"spec": SPEC, "idempotency_key": "once"}
    taken = "SELECT id FROM chores WHERE kind = 'describe' AND state = 'taken'"
    with ExitStack() as stack:
        node = stack.enter_context(Node(Client(other.url, agent)))
        urls = f"{leader.url},{other.url}"
        person = stack.enter_context(Client(urls, other.token, timeout_s=20))
        thread = stack.enter_context(ThreadPoolExecutor(1))
        until(lambda: rows(database, "SELECT id FROM nodes WHERE id = 'n2'"), what="the node")
        submitted = thread.submit(person.post, "/v1/runs", asked)
        until(lambda: rows(database, taken), what="the node to be asked")
        callers = stack.enter_context(Callers(both))
        leader.signal(signal.SIGTERM)
        until(lambda: leader.status() == 503, what="it not to be ready any more")
        told = httpx.get(f"{leader.url}/readyz", trust_env=False)
        assert told.json()["code"] == "draining"
        assert told.headers["connection"] == "close"
        until(lambda: leader_pid(database) == other.pid, what="the other to lead")
        leader.signal(signal.SIGTERM)
        assert leader.wait() == 0
        node.may_describe.set()
        run = submitted.result(timeout=30)
        ended = callers.answers
        until(lambda: callers.answers > ended + 20)
    assert callers.troubles == []
    assert rows(database, "SELECT id FROM runs") == [(run["id"],)], "it went on at the other, once"
    assert "Traceback" not in leader.tail()


def test_clients_that_know_both_do_not_notice_that_one_is_killed(
    both: Sequence[ControlPlane], database: str
) -> None:
    leader = leader_of(both, database)
    with Callers(both) as callers:
        leader.kill()
        until(lambda: leader_pid(database) not in {None, leader.pid}, what="the other to lead")
        ended = callers.answers
        until(lambda: callers.answers > ended + 20)
    assert callers.troubles == []
