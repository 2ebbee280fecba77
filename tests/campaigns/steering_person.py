"""A person who asks things of runs all the time, at whichever control plane answers, and asks each
thing again until there is an answer.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainmaster.client import Client
from trainmaster.errors import ConflictError, UnavailableError

ANSWER_WITHIN_S = 120.0
GOES_ON = ("paused", "held", "stopped", "failed")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was taken."""

    id: int
    run: str
    kind: str


class Person(threading.Thread):
    """Asks for pauses, checkpoints and restores of the runs it is told of.

    Args:
        asked: called after each request that was taken.
    """

    def __init__(self, client: Client, asked: Callable[[], None]) -> None:
        super().__init__(name="person", daemon=True)
        self.runs: list[str] = []
        self.asked: list[Asked] = []
        self.again = Counter[str]()
        self.refused = Counter[str]()
        self.failure: BaseException | None = None
        self._client = client
        self._tell = asked
        self._stopping = threading.Event()

    def insist(self, do: Callable[[], Any]) -> Any:
        """Do something that may be done again, until somebody answers."""
        deadline = time.monotonic() + ANSWER_WITHIN_S
        while True:
            try:
                return do()
            except UnavailableError:
                assert time.monotonic() < deadline, "nobody answers any more"
                self.again["unanswered"] += 1
                time.sleep(0.2)

    def submit(self, spec: dict[str, Any]) -> str:
        body = {"spec": spec, "idempotency_key": uuid.uuid4().hex}
        run = self.insist(lambda: self._client.post("/v1/runs", body))["id"]
        self.runs.append(run)
        return str(run)

    def show(self, run: str) -> dict[str, Any]:
        return dict(self.insist(lambda: self._client.get(f"/v1/runs/{run}")))

    def ask(self, run: str, kind: str, **args: Any) -> bool:
        """Ask for something, now and then twice over; return whether it was taken."""
        body = {"kind": kind, "args": args, "idempotency_key": uuid.uuid4().hex}
        path = f"/v1/runs/{run}/requests"
        try:
            taken = self.insist(lambda: self._client.post(path, body))
        except ConflictError as error:
            self.refused[error.code] += 1
            return False
        self.asked.append(Asked(taken["id"], run, kind))
        self._tell()
        if random.random() < 0.3:
            repeated = self.insist(lambda: self._client.post(path, body))
            assert repeated["id"] == taken["id"], "one key, two requests"
            self.again["repeated"] += 1
        return True

    def abandon(self) -> None:
        """Have it end by itself, whatever it is doing."""
        self._stopping.set()

    def stop(self) -> None:
        """End, leaving each run to go on."""
        self._stopping.set()
        self.join()

    def go_on(self, run: str) -> None:
        if self.show(run)["state"] in GOES_ON:
            self.ask(run, "resume")

    def run(self) -> None:
        try:
            while not self._stopping.wait(random.uniform(0.2, 1.0)):
                if self.runs:
                    self._steer(random.choice(self.runs[-8:]))
        except BaseException as error:
            self.failure = error
            raise

    def _steer(self, run: str) -> None:
        state = self.show(run)["state"]
        if state in GOES_ON:
            self.ask(run, "resume")
        elif state == "running":
            kind = random.choice(("pause", "hold", "checkpoint", "restore"))
            if kind == "restore":
                self._restore(run)
            elif kind == "hold":
                self.ask(run, "pause", hold=True)
            else:
                self.ask(run, kind)

    def _restore(self, run: str) -> None:
        found = self.insist(lambda: self._client.get(f"/v1/runs/{run}/checkpoints"))
        good = [each["id"] for each in found if each["state"] in {"committed", "trusted"}]
        if good:
            self.ask(run, "restore", checkpoint=random.choice(good[-2:]))
