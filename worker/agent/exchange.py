"""The exchange with the control plane: one at a time, in a thread of its own, with back-off."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Protocol

from trainmaster.errors import ForbiddenError, TrainmasterError, UnauthenticatedError
from trainmaster.facts import Batch
from trainmaster.wire import PROTOCOL_VERSION, Sync, SyncReply
from worker.agent.vitals import Vitals

FIRST_BACKOFF_S = 0.2
LONGEST_BACKOFF_S = 5.0
REFUSED_BACKOFF_S = 15.0
SHORTEST_INTERVAL_S = 0.05
LONGEST_INTERVAL_S = 30.0
EAGER_INTERVAL_S = 0.1
FULL_BYTES = 64 << 10
"""A message that had so much of spools stored is followed by the next one at once."""
FIRST_PROTOCOL = 1

log = logging.getLogger(__name__)


class SyncClient(Protocol):
    """The part of `trainmaster.client.Client` that an agent needs."""

    def sync(self, node: str, message: Sync) -> SyncReply: ...

    def link_token(self, node: str) -> str: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply, and the batches that it answers.

    Attributes:
        recovered: the control plane was out of reach before; it may have been set back meanwhile.
    """

    sent: Sequence[Batch]
    reply: SyncReply
    recovered: bool


class Exchange:
    """Knows when to speak next, and says each trouble once.

    Args:
        executor: makes the calls; one thread is enough.
        wake: called from the executor's thread when an answer is there.
        vitals: told how each call ended.
        spread: draws from [0, 1): agents that lost the control plane together do not all come back
            at once.
    """

    def __init__(
        self,
        client: SyncClient,
        node: str,
        *,
        executor: Executor,
        wake: Callable[[], None],
        vitals: Vitals | None = None,
        spread: Callable[[], float] = random.random,
    ) -> None:
        self._client = client
        self._node = node
        self._executor = executor
        self._wake = wake
        self._vitals = vitals or Vitals()
        self._spread = spread
        self._flight: tuple[Sequence[Batch], Future[SyncReply]] | None = None
        self._not_before = 0.0
        self._due = 0.0
        self._paused_until = 0.0
        self._backoff_s = FIRST_BACKOFF_S
        self._trouble: str | None = None
        self.protocol = FIRST_PROTOCOL
        """What the next message is to be written in: as new as the last answer names, and as old as
        can be while there is none. So a control plane of another release is understood at once.
        """

    def free(self, now: float, *, news: bool, eager: bool) -> bool:
        """Return whether to speak now.

        Args:
            news: there is something to tell; only a failure before is a reason to wait.
            eager: an answer is expected that lets this node go on; do not wait for its time.
        """
        due = self._not_before if news else self._due
        if eager:
            due = min(due, self._not_before + EAGER_INTERVAL_S)
        return self._flight is None and now >= max(due, self._paused_until)

    def send(self, message: Sync) -> None:
        """Send a message; `poll` will have the answer."""
        future = self._executor.submit(self._client.sync, self._node, message)
        self._flight = message.batches, future
        future.add_done_callback(lambda _: self._wake())

    def poll(self, now: float) -> Answer | None:
        """Return the answer once it is there; None if there is none, or the call failed.

        After a failure nothing is sent for a while, news or not.
        """
        if self._flight is None or not self._flight[1].done():
            return None
        sent, future = self._flight
        self._flight = None
        error = future.exception()
        if isinstance(error, TrainmasterError):
            self._failed(error, now)
            return None
        reply = future.result()
        self._vitals.answered()
        recovered = self._trouble is not None
        if recovered:
            log.info("the control plane answers again")
        self._trouble, self._backoff_s = None, FIRST_BACKOFF_S
        self.protocol = min(max(reply.protocol, FIRST_PROTOCOL), PROTOCOL_VERSION)
        interval_s = min(max(reply.next_sync_s, SHORTEST_INTERVAL_S), LONGEST_INTERVAL_S)
        self._due, self._not_before = now + interval_s, now + SHORTEST_INTERVAL_S
        if _stored_bytes(sent, reply) >= FULL_BYTES:
            self._not_before = now
        return Answer(sent, reply, recovered)

    def pause(self, until: float) -> None:
        """Say nothing before `until`, as if the control plane were out of reach."""
        self._paused_until = until
        self._trouble = "a drill has cut the link"

    def _part(self) -> float:
        """Return which part of a back-off to wait: half of it to all of it."""
        return 0.5 + 0.5 * self._spread()

    @property
    def troubled(self) -> bool:
        """Whether the last call failed."""
        return self._trouble is not None

    def _failed(self, error: TrainmasterError, now: float) -> None:
        self._vitals.failed()
        self.protocol = FIRST_PROTOCOL
        if isinstance(error, UnauthenticatedError | ForbiddenError):
            self._due = now + REFUSED_BACKOFF_S * self._part()
            hint = f"; is its token one of role agent for node {self._node}?"
        else:
            self._due, hint = now + self._backoff_s * self._part(), ""
            self._backoff_s = min(2 * self._backoff_s, LONGEST_BACKOFF_S)
        self._not_before = self._due
        trouble = f"{error.message}{hint}"
        if trouble != self._trouble:
            log.warning("%s (training goes on, facts are kept, trying again)", trouble)
        self._trouble = trouble


def _stored_bytes(sent: Sequence[Batch], reply: SyncReply) -> int:
    return sum(
        batch.to_offset - batch.from_offset
        for batch in sent
        if reply.cursors.get(batch.stream) == batch.to_offset
    )
