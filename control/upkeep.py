"""Upkeep of stores, by the leader: checkpoints that have lain for a while are read again, and what
belongs to nobody goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

from control.clock import Clock
from control.db import upkeep
from control.db.sql.engine import Database

EVERY_S: Final = 60.0


class Upkeep:
    """The errands of it.

    Args:
        scrub_days: after how many days without a reading a checkpoint is read again; 0: never.
        scrub_bytes_per_s: how fast at most, over all nodes; 0: as fast as it goes.
    """

    def __init__(
        self, db: Database, clock: Clock, *, scrub_days: int, scrub_bytes_per_s: int
    ) -> None:
        self._db = db
        self._clock = clock
        self._older_than = timedelta(days=scrub_days)
        self._bytes_per_s = scrub_bytes_per_s

    def all(self) -> Sequence[tuple[Callable[[], None], float]]:
        """Return each errand, and every how many seconds it is due."""
        scrubbing = [(self.scrub, EVERY_S)] if self._older_than else []
        return [(self.look_through, EVERY_S), *scrubbing]

    def scrub(self) -> None:
        """Have one checkpoint read again."""
        with self._db.write() as connection:
            upkeep.scrub_next(
                connection,
                older_than=self._older_than,
                bytes_per_s=self._bytes_per_s,
                now=self._clock.now(),
            )

    def look_through(self) -> None:
        """Have stores looked through for what belongs to nobody."""
        with self._db.write() as connection:
            upkeep.list_next(connection, now=self._clock.now())
