"""What the agent tells a rank while it runs, and rank 0's acknowledgements."""

from __future__ import annotations

from collections import deque
from pathlib import Path

from trainmaster.orders import Order
from worker.guard import NO_ORDER, Told
from worker.launch import Inbox
from worker.reporting.spoolfile import SpoolFile


class InboxFile:
    """`inbox.json`, parsed again only when it was replaced; looking costs one stat."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._inbox = Inbox()

    def look(self) -> Inbox:
        """Return the latest inbox; an absent one is empty."""
        try:
            facts = self._path.stat()
            seen = (facts.st_ino, facts.st_mtime_ns, facts.st_size)
            if seen != self._seen:
                self._inbox = Inbox.model_validate_json(self._path.read_bytes())
                self._seen = seen
        except FileNotFoundError:
            return self._inbox
        return self._inbox


class OrderDesk:
    """Rank 0's orders: taken once each in order of seq, told to all ranks one per step boundary,
    acknowledged by events.
    """

    def __init__(self, inbox: InboxFile, spool: SpoolFile) -> None:
        self._inbox = inbox
        self._spool = spool
        self._waiting: deque[Order] = deque()
        self._last_seq = 0

    def next(self) -> Told:
        """Acknowledge what has arrived, and return the next order to tell; `NO_ORDER` when there is
        none.
        """
        for order in sorted(self._inbox.look().orders, key=lambda order: order.seq):
            if order.seq > self._last_seq:
                self._last_seq = order.seq
                self._waiting.append(order)
                self._spool.event("order_received", seq=order.seq, kind=order.kind)
        if not self._waiting:
            return NO_ORDER
        order = self._waiting.popleft()
        return order.word, order.seq

    def applied(self, seq: int, step: int) -> None:
        """Tell that an order holds since the end of `step`."""
        self._spool.event("order_applied", seq=seq, step=step)

    def refused(self, seq: int, step: int, because: str) -> None:
        """Tell that an order was not followed, and why."""
        self._spool.event("order_refused", seq=seq, step=step, because=because)
