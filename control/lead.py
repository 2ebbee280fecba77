"""The periodic work of this process while it may do it: always on SQLite, where the home's lock
admits one process; on PostgreSQL for as long as it leads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from control.clock import Clock, SteadyClock
from control.clockwork import Clockwork
from control.db.samples.ageing import Ages
from control.db.sql.engine import Database
from control.leadership import Fence, Leadership
from control.reconciler import Reconciler
from control.vitals import Vitals


class Lead:
    """Starts a clockwork when its process begins to lead, and stops it when it no longer does.

    Args:
        ages: how old samples may grow; None for any age.
        errands: further periodic work, as `Clockwork` takes it.
        vitals: told what the work comes to.

    Attributes:
        up_since: since when this process has been hearing nodes, without a gap in time.
    """

    def __init__(
        self,
        db: Database,
        clock: Clock,
        *,
        ages: Ages | None = None,
        errands: Sequence[tuple[Callable[[], None], float]] = (),
        vitals: Vitals | None = None,
    ) -> None:
        self._db = db
        self._vitals = vitals or Vitals()
        self._errands = errands
        self._ages = ages
        self._clock = clock
        self._reconciler: Reconciler | None = None
        self._clockwork: Clockwork | None = None
        self.up_since = clock.now()
        if isinstance(clock, SteadyClock):
            clock.when_stepped(self._hear_anew)
        self._leadership = None if db.is_sqlite else Leadership(db, self._begin)

    @property
    def leads(self) -> bool:
        """Whether this process does the periodic work just now."""
        if self._leadership is not None:
            return self._leadership.leads
        return self._clockwork is not None

    @property
    def skipped(self) -> int:
        """How often a piece of work was due while it still ran, in this term."""
        return self._clockwork.skipped if self._clockwork is not None else 0

    def start(self) -> None:
        """Begin to lead, or to run for the lead."""
        if self._leadership is not None:
            self._leadership.start()
        else:
            self._begin(None).start()

    def hand_over(self) -> None:
        """Have another lead as soon as the work that is under way is done; does not wait for it.

        On SQLite there is no other, and the work goes on until `stop`.
        """
        if self._leadership is not None:
            self._leadership.resign()

    def stop(self) -> None:
        """End after the work that is under way."""
        if self._leadership is not None:
            self._leadership.stop()
        elif self._clockwork is not None:
            self._clockwork.stop()

    def wake(self) -> None:
        """Have the due runs looked at now, if this process leads; else the leader looks soon."""
        if self._clockwork is not None:
            self._clockwork.wake()

    def _begin(self, fence: Fence | None) -> Clockwork:
        # Nodes get a whole lease from a new leader: it cannot know for how long nobody listened.
        self._reconciler = Reconciler(
            self._db, self._clock, up_since=self._clock.now(), vitals=self._vitals
        )
        self._clockwork = Clockwork(
            self._db,
            self._clock,
            self._reconciler,
            fence=fence,
            ages=self._ages,
            errands=self._errands,
            vitals=self._vitals,
        )
        return self._clockwork

    def _hear_anew(self, now: datetime) -> None:
        """Give nodes a whole lease: time has gone forwards, and nobody could be heard meanwhile."""
        self.up_since = now
        if self._reconciler is not None:
            self._reconciler.up_since = now
