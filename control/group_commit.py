"""Group commit: the syncs that arrive while one transaction is under way share the next.

A transaction costs about the same for one node as for a hundred. So there is one at a time, at
most one in `GATHER_S`, and what arrives meanwhile forms the next group: under light load each sync
is alone and waits for nobody, under heavy load groups grow until the rate fits. Each sync is
answered after its group is committed, and only then. If a group fails, its members are tried one by
one, so that none suffers for another.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, func, select

from control import auth
from control.clock import Clock
from control.db import assignments, facts, tables
from control.db.assignments import FixedParts, Wanted
from control.db.facts import Said, Stored
from control.db.fleet import chores
from control.db.fleet.heartbeats import Described
from control.db.sql.engine import Database
from control.liveness.leases import sync_interval_s
from trainmaster.errors import TrainmasterError, UnauthenticatedError, UnavailableError
from trainmaster.wire import PROTOCOL_VERSION, Chore, SyncReply

log = logging.getLogger(__name__)

MAX_MEMBERS = 256
MAX_ROWS = 100_000
"""Sample rows of one group; a node with more is a group of its own."""

GATHER_S = 0.02
"""Groups begin at least so far apart: a fleet's syncs come one by one, and each alone would cost
twenty times its share of a group.
"""

SOON_S = 0.2
"""When a node comes back, in a small fleet, while something is on its way: a start, an order, a
chore.
"""

COUNT_EVERY = timedelta(seconds=5)
HEARD_OF_LATE = timedelta(seconds=60)

Answer = bytes | Exception


@dataclass(slots=True)
class Member:
    """One sync that waits for its answer."""

    said: Said
    token_sha256: str
    answered: asyncio.Future[bytes]

    @property
    def num_rows(self) -> int:
        """How many sample rows it brings."""
        return sum(len(rows.steps) for rows in self.said.rows.values())


@dataclass(slots=True)
class Counts:
    """What has been done so far."""

    groups: int = 0
    members: int = 0
    refused: int = 0
    retried: int = 0
    rows: int = 0


class GroupCommit:
    """Stores syncs, one group at a time. Called on the event loop; the database is spoken to in a
    thread.

    Args:
        wake: called when there is news of a run.
    """

    def __init__(self, db: Database, clock: Clock, wake: Callable[[], None]) -> None:
        self._db = db
        self._clock = clock
        self._wake = wake
        self._waiting: deque[Member] = deque()
        self._fixed = FixedParts()
        self._described: dict[str, Described] = {}
        self._fleet = 0
        self._counted_at: datetime | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="syncs")
        self._running: asyncio.Task[None] | None = None
        self.counts = Counts()

    @property
    def num_waiting(self) -> int:
        """How many syncs wait for their group."""
        return len(self._waiting)

    async def exchange(self, said: Said, token_sha256: str) -> bytes:
        """Store what a node says; return the JSON of the answer.

        Raises:
            UnauthenticatedError: the token has ended since the request was let in.
            TrainmasterError: it was not stored.
        """
        member = Member(said, token_sha256, asyncio.get_running_loop().create_future())
        self._waiting.append(member)
        if self._running is None:
            self._running = asyncio.create_task(self._work())
        return await member.answered

    def close(self) -> None:
        """End the thread, after the group that is under way."""
        self._executor.shutdown(wait=True)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await self._work_off(loop)
        finally:
            self._running = None

    async def _work_off(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            next_at = loop.time() + GATHER_S
            group = self._next_group()
            answers = await loop.run_in_executor(self._executor, self._answers, group)
            for member, answer in zip(group, answers, strict=True):
                if member.answered.done():
                    continue  # whoever asked has gone; what it said is stored
                if isinstance(answer, Exception):
                    member.answered.set_exception(answer)
                else:
                    member.answered.set_result(answer)
            await asyncio.sleep(next_at - loop.time())

    def _next_group(self) -> list[Member]:
        """Take from the waiting in the order in which they came; of one node at most one."""
        group: dict[str, Member] = {}
        later: list[Member] = []
        num_rows = 0
        while self._waiting and len(group) < MAX_MEMBERS:
            member = self._waiting.popleft()
            num_rows += member.num_rows
            if member.said.node in group or (group and num_rows > MAX_ROWS):
                later.append(member)
                break
            group[member.said.node] = member
        self._waiting.extendleft(reversed(later))
        return list(group.values())

    def _answers(self, group: Sequence[Member]) -> Sequence[Answer]:
        """Return one answer per member; never raises."""
        try:
            answers = self._commit(group)
        except Exception as error:
            if len(group) == 1:
                return [_told(error, group[0].said.node)]
            if isinstance(error, UnavailableError):
                # No member's fault: one by one, each would wait as long for the same answer.
                return [error] * len(group)
            log.info("a group of %d syncs is tried one by one: %s", len(group), error)
            self.counts.retried += 1
            return [answer for member in group for answer in self._answers([member])]
        return answers

    def _commit(self, group: Sequence[Member]) -> list[Answer]:
        now = self._clock.now()
        with self._db.write() as connection:
            # Each request was let in by its token; whether that still holds is asked once for all.
            valid = auth.valid_tokens(
                connection, {member.token_sha256 for member in group}, now=now
            )
            members = [member for member in group if member.token_sha256 in valid]
            protocols = {member.said.node: member.said.sync.protocol for member in members}
            stored = facts.store(
                connection,
                [member.said for member in members],
                now=now,
                stored=self._described,
            )
            work = chores.take(connection, protocols, now=now)
        self._described |= stored.described
        if stored.touched:
            self._wake()
        with self._db.read() as connection:
            wanted = assignments.wanted_of(connection, protocols, self._fixed)
            interval_s = sync_interval_s(self._num_nodes(connection, now))
        self.counts.groups += 1
        self.counts.members += len(members)
        self.counts.refused += len(group) - len(members)
        self.counts.rows += sum(member.num_rows for member in members)
        return [
            _reply(member.said.node, stored, wanted, work, interval_s)
            if member.token_sha256 in valid
            else UnauthenticatedError("the token is unknown, revoked or expired")
            for member in group
        ]

    def _num_nodes(self, connection: Connection, now: datetime) -> int:
        """Return how many nodes were heard of late; counted anew every few seconds."""
        if self._counted_at is None or abs(now - self._counted_at) > COUNT_EVERY:
            c = tables.nodes.c
            query = select(func.count()).select_from(tables.nodes)
            self._fleet = connection.scalar(query.where(c.last_seen_at > now - HEARD_OF_LATE)) or 0
            self._counted_at = now
        return self._fleet


def _told(error: Exception, node: str) -> Exception:
    if not isinstance(error, TrainmasterError):
        log.error("a sync of node %s failed", node, exc_info=error, extra={"node": node})
    return error


def _reply(
    node: str,
    stored: Stored,
    wanted: Mapping[str, Wanted],
    work: Mapping[str, list[Chore]],
    interval_s: float,
) -> Answer:
    """Return the JSON of the answer to one node: `SyncReply`, with its assignments as they are kept
    in memory.
    """
    of_node = wanted.get(node) or Wanted()
    if of_node.unreadable is not None:
        return of_node.unreadable
    mine = work.get(node, [])
    if mine or of_node.soon:
        come_back_s = SOON_S * interval_s
    else:
        come_back_s = 1.0 if of_node.assignments else interval_s
    reply = SyncReply(
        protocol=PROTOCOL_VERSION,
        cursors=dict(stored.cursors[node]),
        chores=mine,
        next_sync_s=come_back_s,
    )
    head = reply.model_dump_json(exclude={"assignments"}).encode()[:-1]
    return head + b',"assignments":[' + b",".join(of_node.assignments) + b"]}"
