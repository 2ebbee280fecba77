"""A node that only pretends to train, and knows all that it ever told: what the database holds
afterwards is compared with that.

It behaves as an agent does: facts wait in spools until the control plane names a cursor beyond
them, are sent again from whatever cursor it names, and an exit is told once the rank's last words
are stored.
"""

from __future__ import annotations

import bisect
import random
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from trainmaster.client import Client
from trainmaster.errors import UnavailableError
from trainmaster.facts import Batch, Columns, Event
from trainmaster.ids import agent_stream, rank_stream
from trainmaster.orders import Order
from trainmaster.wire import Assignment, Chore, Running, Sync, SyncReply

AGENT = agent_stream("0001")
NOTE = "campaign_noted"
"""An event without consequence, each with a number of its own."""

STEP_S = 0.04
MOST_FRAMES = 400
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.1, 1.0
BURST = range(15, 21)
"""Steps of each generation after its first in which a rule's metric is bad."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One step, or one event."""

    at: datetime
    step: int | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    event: Event | None = None


class Spool:
    """Frames of one stream, each some bytes long, of which the control plane has stored a part."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self._ends = [0]
        self.stored = 0
        self.sent_again = 0

    def append(self, frame: Frame) -> None:
        self.frames.append(frame)
        self._ends.append(self._ends[-1] + random.randint(20, 300))

    @property
    def settled(self) -> bool:
        return self.stored >= self._ends[-1]

    def accept(self, cursor: int) -> None:
        """Go on from where the control plane stands; it must stand between two frames."""
        assert cursor in self._ends, f"a cursor within a frame: {cursor}"
        self.sent_again += cursor < self.stored
        self.stored = cursor

    def batch(self, stream: str) -> Batch | None:
        first = bisect.bisect_right(self._ends, self.stored) - 1
        chosen = self.frames[first : first + random.randint(1, MOST_FRAMES)]
        if not chosen:
            return None
        steps = [each for each in chosen if each.step is not None]
        names = sorted({name for each in steps for name in each.values})
        samples = Columns(
            steps=[each.step for each in steps],
            at=[each.at.timestamp() for each in steps],
            values={name: [each.values.get(name) for each in steps] for name in names},
        )
        return Batch(
            stream=stream,
            from_offset=self.stored,
            to_offset=self._ends[first + len(chosen)],
            events=[each.event for each in chosen if each.event is not None],
            samples=samples if steps else None,
        )


class Attempt:
    """The one rank of a generation that this node runs."""

    def __init__(self, assignment: Assignment, node: LightNode) -> None:
        self.assignment = assignment
        self.spool = Spool()
        self.began_at: datetime | None = None
        self.ended_at: datetime | None = None
        self.told = False
        self.held = False
        self.step = assignment.resume.step if assignment.resume else 0
        self._first = self.step + 1
        self._node = node
        self._last_seq = 0
        self._committed = self.step
        self._due = 0.0
        self._exit: dict[str, Any] = {}

    @property
    def key(self) -> tuple[str, int]:
        return self.assignment.run, self.assignment.generation

    @property
    def lives(self) -> bool:
        return self.began_at is not None and self.ended_at is None

    def live(self, assignment: Assignment) -> None:
        """Do what is due: start, follow orders, take steps."""
        self.assignment = assignment
        if self.ended_at is not None or assignment.store is None:
            return
        if self.began_at is None:
            self._begin()
        for order in sorted(assignment.orders, key=lambda each: each.seq):
            if order.seq > self._last_seq and self.lives:
                self._last_seq = order.seq
                self._obey(order)
        while self.lives and not self.held and time.monotonic() >= self._due:
            self._due = max(self._due + STEP_S, time.monotonic() - 5 * STEP_S)
            self._take_step()

    def stop(self) -> None:
        """End because the node is no longer to run this."""
        if self.lives:
            self._end(exit_code=None, signal=15, stopped=True)
        elif self.began_at is None:
            self.began_at = self.ended_at = datetime.now(UTC)
            self.told = True  # nothing was started, so nothing ended

    def exited(self) -> dict[str, Any] | None:
        """The exit to tell, once all that the rank said is stored."""
        if self.ended_at is None or self.told or not self.spool.settled:
            return None
        self.told = True
        return self._exit

    def _begin(self) -> None:
        self.began_at = datetime.now(UTC)
        self._due = time.monotonic()
        run, generation = self.key
        self._node.tell(
            "rank_started", {"run": run, "generation": generation, "rank": 0, "pid": 1000}
        )
        self._say("rank_ready", step=self.step, pid=1000)
        if self.step >= self.assignment.spec.train.steps:
            self._finish()  # it was restored to its last checkpoint

    def _take_step(self) -> None:
        self.step += 1
        since = self.step - self._first + 1
        values = {
            "loss": 1 + self.assignment.generation / self.step,
            "grad_norm": 1.0,
            "applied": 1.0,
            "tokens": 8.0,
            "step_time_s": STEP_S,
            "latency_ms": 9e6 if since in BURST else 1.0,
        }
        self.spool.append(Frame(datetime.now(UTC), step=self.step, values=values))
        if self.step % 5 == 0:
            self._say(NOTE, number=self._node.number())
        last = self.assignment.spec.train.steps
        if self.step % self.assignment.checkpoint_every == 0 or self.step == last:
            self._commit()
        if self.step == last:
            self._finish()

    def _finish(self) -> None:
        self._say("rank_finished", step=self.step, ordered=False, weights_sha256="sha256:ab")
        self._end(exit_code=0, signal=None, stopped=False)

    def _obey(self, order: Order) -> None:
        self._say("order_received", seq=order.seq, kind=order.kind)
        if order.kind in {"hold", "release"}:
            self.held = order.kind == "hold"
            self._due = time.monotonic()
        elif order.kind == "checkpoint" or order.args.get("checkpoint", True):
            self._commit()
        self._say("order_applied", seq=order.seq, step=self.step)
        if order.kind == "stop":
            self._say("rank_finished", step=self.step, ordered=True)
            self._end(exit_code=0, signal=None, stopped=False)

    def _commit(self) -> None:
        if self.step in {0, self._committed}:
            return
        self._committed = self.step
        place = f"{self.assignment.checkpoint_root}/g{self.assignment.generation}-step{self.step}"
        digest = "sha256:" + f"{self.step:064x}"
        told = {"step": self.step, "location": place, "manifest_sha256": digest}
        self._say("checkpoint_committed", **told, bytes=8, files=2, parent=None)

    def _say(self, kind: str, /, **data: Any) -> None:
        at = datetime.now(UTC)
        self.spool.append(Frame(at, event=Event(kind=kind, at=at, data=data)))

    def _end(self, **how: Any) -> None:
        self.ended_at = datetime.now(UTC)
        run, generation = self.key
        self._exit = {"run": run, "generation": generation, "rank": 0, "because": None, **how}


class LightNode(threading.Thread):
    """One node.

    Args:
        info: what it says of any workload.
    """

    def __init__(self, name: str, client: Client, info: Mapping[str, Any], slots: int) -> None:
        super().__init__(name=name, daemon=True)
        self.attempts: dict[tuple[str, int], Attempt] = {}
        self.agent = Spool()
        self.syncs = self.refused = 0
        self._client = client
        self._info = info
        self._slots = slots
        self._assigned: list[Assignment] = []
        self._done: set[int] = set()
        self._numbers = 0
        self._stopping = threading.Event()
        self.failure: BaseException | None = None

    def spools(self) -> dict[str, Spool]:
        ranks = {rank_stream(*key, 0): each.spool for key, each in self.attempts.items()}
        return {AGENT: self.agent, **ranks}

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def tell(self, kind: str, data: Mapping[str, Any]) -> None:
        at = datetime.now(UTC)
        self.agent.append(Frame(at, event=Event(kind=kind, at=at, data=dict(data))))

    def told(self) -> Counter[str]:
        """How many events of each kind were told, by whoever told them here."""
        return Counter(
            frame.event.kind
            for spool in self.spools().values()
            for frame in spool.frames
            if frame.event is not None
        )

    def stop(self) -> None:
        self._stopping.set()
        self.join()
        self._client.close()

    @property
    def settled(self) -> bool:
        return all(spool.settled for spool in self.spools().values())

    def run(self) -> None:
        backoff_s = FIRST_BACKOFF_S
        wait_s = 0.0
        try:
            while not self._stopping.wait(wait_s):
                self._live()
                try:
                    reply = self._client.sync(self.name, self._message())
                except UnavailableError:
                    self.refused += 1
                    wait_s, backoff_s = backoff_s, min(2 * backoff_s, LONGEST_BACKOFF_S)
                    continue
                self.syncs += 1
                self._hear(reply)
                backoff_s = FIRST_BACKOFF_S
                wait_s = 0.1 if self._assigned or not self.settled else min(reply.next_sync_s, 0.5)
        except BaseException as error:
            self.failure = error
            raise

    def _live(self) -> None:
        wanted = {(each.run, each.generation): each for each in self._assigned}
        for key, attempt in self.attempts.items():
            if key not in wanted:
                attempt.stop()
        for key, assignment in wanted.items():
            attempt = self.attempts.get(key) or Attempt(assignment, self)
            self.attempts[key] = attempt
            attempt.live(assignment)
        for attempt in self.attempts.values():
            told = attempt.exited()
            if told is not None:
                self.tell("rank_exited", told)

    def _message(self) -> Sync:
        batches = [spool.batch(stream) for stream, spool in self.spools().items()]
        running = [
            Running(
                run=each.key[0],
                generation=each.key[1],
                store="127.0.0.1:1" if each.assignment.hosts_store else None,
                ranks={0: 1000} if each.lives else {},
            )
            for each in self.attempts.values()
            if not each.told
        ]
        return Sync(
            boot=self.name,
            version="0",
            sent_at=datetime.now(UTC),
            address="127.0.0.1",
            slots=self._slots,
            labels={"kind": "light"},
            running=running,
            batches=[each for each in batches if each is not None],
        )

    def _hear(self, reply: SyncReply) -> None:
        for stream, spool in self.spools().items():
            if stream in reply.cursors:
                spool.accept(reply.cursors[stream])
        self._assigned = reply.assignments
        for chore in reply.chores:
            if chore.id not in self._done:
                self._done.add(chore.id)
                self.tell("chore_done", self._answer(chore))

    def _answer(self, chore: Chore) -> dict[str, Any]:
        results: dict[str, Mapping[str, Any]] = {
            "describe": self._info,
            "verify": {"sound": True, "findings": []},
            "retire": {},
        }
        return {"id": chore.id, "ok": True, "result": results[chore.kind], "problems": []}
