"""The API in process, and a fake node that speaks to it as an agent does."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.testclient import TestClient

from control import auth, rights
from control.app import create_app
from control.clock import Clock
from control.db.sql.engine import Database
from control.serving import prepare
from control.settings import Settings
from trainmaster.facts import Batch, Columns, Event
from trainmaster.home import Home
from trainmaster.ids import agent_stream, rank_stream
from trainmaster.wire import Assignment, Chore, Running, Sync, SyncReply

AGENT = agent_stream("0001")


@dataclass
class Api:
    """A client with one token; every answer is checked to be JSON."""

    http: TestClient
    token: str | None

    def call(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return self.http.request(method, path, json=body, headers=headers, **more)

    def get(self, path: str, **query: Any) -> Any:
        answer = self.call("GET", path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, body: Any = None, *, expect: int | None = None) -> Any:
        answer = self.call("POST", path, body)
        assert answer.is_success if expect is None else answer.status_code == expect, answer.text
        return answer.json()


@dataclass
class Plane:
    """A whole control plane in process. `people` are one client per role."""

    http: TestClient
    db: Database
    settings: Settings
    people: Mapping[str, Api]

    @property
    def admin(self) -> Api:
        return self.people["admin"]

    def as_node(self, node: str) -> Api:
        told = self.admin.post("/v1/tokens", {"role": "agent", "node": node})
        return Api(self.http, told["token"])


@contextmanager
def plane(
    db: Database, home: Home, clock: Clock, *, leads: bool = False, **settings: Any
) -> Iterator[Plane]:
    """Run the application over `db`; with `leads`, its clockwork too."""
    chosen = Settings(home, **{"describe_limit_s": 5.0, **settings})
    prepare(chosen, db, clock)
    app = create_app(chosen, db, clock, leads=leads)
    people: dict[str, Api] = {}
    with TestClient(app, raise_server_exceptions=False) as http:
        for role in (rights.VIEWER, rights.OPERATOR, rights.ADMIN):
            with db.write() as connection:
                _, token = auth.create_token(
                    connection, role=role, name=None, node=None, actor="test", now=clock.now()
                )
            people[role] = Api(http, token)
        yield Plane(http, db, chosen, people)


INFO = {
    "num_layers": 4,
    "layers": [],
    "num_parameters": 100,
    "num_samples": 64,
    "code_sha256": "0" * 64,
    "data_sha256": "1" * 64,
}


@dataclass
class FakeNode:
    """An agent and its ranks: does what it is assigned, as fast as it is asked to."""

    api: Api
    name: str = "n1"
    slots: int = 4
    metrics_port: int = 9100
    describes: Mapping[str, Any] = field(
        default_factory=lambda: {"ok": True, "result": INFO, "problems": []}
    )
    calibrates: Mapping[str, Any] = field(default_factory=dict)
    profile: Mapping[str, Any] = field(default_factory=dict)
    protocol: int = 1
    cursors: dict[str, int] = field(default_factory=dict)
    running: list[Running] = field(default_factory=list)
    assignments: list[Assignment] = field(default_factory=list)

    def sync(self, *batches: tuple[str, Columns | None, Sequence[Event]]) -> SyncReply:
        """Send what the streams tell next, and do the chores that come back."""
        told = [
            Batch(
                stream=stream,
                from_offset=self.cursors.get(stream, 0),
                to_offset=self.cursors.get(stream, 0) + 10,
                samples=samples,
                events=list(events),
            )
            for stream, samples, events in batches
        ]
        message = Sync(
            protocol=self.protocol,
            boot="b1",
            version="0",
            sent_at=_now(),
            address="127.0.0.1",
            metrics_port=self.metrics_port,
            slots=self.slots,
            profile=dict(self.profile),
            running=self.running,
            batches=told,
        )
        answer = self.api.call(
            "POST", f"/v1/nodes/{self.name}/sync", message.model_dump(mode="json")
        )
        assert answer.status_code == 200, answer.text
        reply = SyncReply.model_validate_json(answer.content)
        self.cursors |= reply.cursors
        self.assignments = reply.assignments
        return reply

    def turn(self) -> SyncReply:
        """Sync, and answer the chores that came."""
        reply = self.sync()
        done = [self._done(chore) for chore in reply.chores]
        return self.sync((AGENT, None, done)) if done else reply

    def _done(self, chore: Chore) -> Event:
        answers: dict[str, Mapping[str, Any]] = {
            "describe": self.describes,
            "verify": {"ok": True, "result": {"ok": True, "findings": []}},
            "retire": {"ok": True, "result": {}},
            "compare": {"ok": True, "result": {"whole": {"norm": 2.0}, "layers": []}},
            "calibrate": self.calibrates,
        }
        return Event(kind="chore_done", at=_now(), data={"id": chore.id, **answers[chore.kind]})

    @contextmanager
    def in_background(self) -> Iterator[None]:
        """Keep syncing while something waits for a node."""
        stop = threading.Event()

        def loop() -> None:
            while not stop.wait(0.05):
                self.turn()

        thread = threading.Thread(target=loop, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def _now() -> Any:
    from datetime import UTC, datetime

    return datetime.now(UTC)


def stream_of(assignment: Assignment, rank: int) -> str:
    return rank_stream(assignment.run, assignment.generation, rank)


SPEC: dict[str, Any] = {
    "name": "alpha",
    "workload": "somewhere:workload",
    "train": {"steps": 20, "global_batch": 8},
    "parallel": {"replicas": 1, "stages": 2, "micro_batch": 1},
    "checkpoint": {"every_steps": 10},
}
