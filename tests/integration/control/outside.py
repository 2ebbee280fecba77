"""A real control plane under load, whose database is then mistreated from outside.

Eight nodes send syncs, each one step of its own run, as fast as they are answered. What was
answered with 200 is accepted, and must be found afterwards, once. What was not is sent again, as an
agent does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx

from control import auth, rights
from control.clock import SystemClock
from control.db.sql.engine import Database
from tests.integration.control.scene import Scene, columns
from trainmaster.facts import Batch
from trainmaster.ids import rank_stream
from trainmaster.wire import Running, Sync

WRITERS = 8
STEP_BYTES = 10


def until(look: Callable[[], Any], what: str, within_s: float = 60) -> Any:
    deadline = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.02)
    return found


@dataclass
class Writer:
    """One node with one rank of one run."""

    address: str
    token: str
    node: str
    run: str
    accepted: int = 0
    refusals: list[tuple[int, str]] = field(default_factory=list)

    def work(self, stop: threading.Event) -> None:
        stream = rank_stream(self.run, 1, 0)
        step = self.accepted + 1
        with httpx.Client(base_url=self.address, trust_env=False, timeout=60) as http:
            while not stop.is_set():
                try:
                    answer = http.post(
                        f"/v1/nodes/{self.node}/sync",
                        content=self._message(stream, step),
                        headers={"Authorization": f"Bearer {self.token}"},
                    )
                except httpx.TransportError as error:
                    self.refusals.append((0, str(error)))
                    stop.wait(0.1)
                    continue
                if answer.status_code != 200:
                    self.refusals.append((answer.status_code, answer.text))
                    stop.wait(0.1)
                    continue
                stored = answer.json()["cursors"][stream]
                self.accepted = stored // STEP_BYTES
                step = self.accepted + 1

    def _message(self, stream: str, step: int) -> str:
        batch = Batch(
            stream=stream,
            from_offset=(step - 1) * STEP_BYTES,
            to_offset=step * STEP_BYTES,
            samples=columns([step], loss=[float(step)]),
        )
        return Sync(
            boot="b1",
            version="0",
            sent_at=datetime.now(UTC),
            address="127.0.0.1",
            slots=4,
            running=[Running(run=self.run, generation=1, ranks={0: 7})],
            batches=[batch],
        ).model_dump_json()


@dataclass
class Fleet:
    """The nodes, and the control plane that they speak to."""

    address: str
    db: Database
    admin: str
    writers: list[Writer]

    def get(self, path: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.admin}"}
        return httpx.get(f"{self.address}{path}", headers=headers, trust_env=False, timeout=60)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Have all writers write; afterwards everything accepted is there, once."""
        stop = threading.Event()
        for each in self.writers:
            each.refusals.clear()
        threads = [
            threading.Thread(target=each.work, args=(stop,), daemon=True) for each in self.writers
        ]
        for thread in threads:
            thread.start()
        try:
            self.wait_for_progress()
            yield
            self.wait_for_progress()
        finally:
            stop.set()
            for thread in threads:
                thread.join(90)
        self.require_whole()

    def wait_for_progress(self) -> None:
        """Return once each writer had two more steps accepted."""
        goals = [each.accepted + 2 for each in self.writers]
        until(
            lambda: all(w.accepted >= g for w, g in zip(self.writers, goals, strict=True)),
            f"every node to be stored again; refused were {self.refusals()[-1:]}",
        )

    def refusals(self) -> list[tuple[int, str]]:
        return [each for writer in self.writers for each in list(writer.refusals)]

    def wait_for_refusal(self, *words: str) -> str:
        """Return a refusal that has all of `words`; each refusal so far must be a 503."""

        def look() -> str | None:
            found = self.refusals()
            assert all(status == 503 for status, _ in found), found[-1]
            fitting = [text for _, text in found if all(word in text for word in words)]
            return fitting[0] if fitting else None

        return str(until(look, f"a refusal with {words}; there were {self.refusals()[-1:]}"))

    def require_whole(self) -> None:
        for each in self.writers:
            told = self.get(f"/v1/runs/{each.run}/series?metric=loss&points=1000000&rank=0")
            assert told.status_code == 200, told.text
            points = told.json()["points"]
            assert [point[1] for point in points] == list(range(1, len(points) + 1))
            assert [point[2] for point in points] == [float(point[1]) for point in points]
            assert len(points) >= each.accepted

    def ready(self) -> bool:
        return self.get("/readyz").status_code == 200

    def require_that_runs_go_on(self) -> None:
        """Wait until a new run had a turn: reconciler, leadership and clockwork are alive."""
        scene = Scene(self.db, SystemClock())
        run = scene.submit()
        until(
            lambda: self.get(f"/v1/runs/{run}").json()["because"] != "", "the new run to be seen to"
        )


def prepare(db: Database) -> list[tuple[str, str, str]]:
    """Return (node, run, token) of eight nodes with a living rank each."""
    scene = Scene(db, SystemClock())
    made = []
    for number in range(WRITERS):
        node = f"n{number}"
        run = scene.submit(name=f"run-{number}")
        scene.begin(node=node, run=run)
        with db.write() as connection:
            _, token = auth.create_token(
                connection,
                role=rights.AGENT,
                name=None,
                node=node,
                actor="test",
                now=datetime.now(UTC),
            )
        made.append((node, run, token))
    return made


def fleet(db: Database, address: str, admin: str, prepared: list[tuple[str, str, str]]) -> Fleet:
    writers = [Writer(address, token, node, run) for node, run, token in prepared]
    return Fleet(address, db, admin, writers)
