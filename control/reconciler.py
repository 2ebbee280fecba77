"""The loop: load -> decide -> apply, run by run. The only place where time, the database and the
deciders meet.

A turn that raises pushes its run back before it is reported, so one bad run cannot stop the others.
A turn that finds its snapshot stale changes nothing; the run stays due and is looked at again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from sqlalchemy import select, update

from control.clock import Clock
from control.db import apply as applying
from control.db import queue, tables
from control.db.load import Memory, load
from control.db.sql.engine import Database
from control.db.sql.faults import UnreadableError
from control.decide import decide
from control.decision import Decision
from control.lifecycle import State
from control.rules.watching import Watches
from control.snapshot import RunSnapshot
from control.vitals import Vitals
from trainmaster import logs
from trainmaster.errors import ConflictError, UnavailableError

log = logging.getLogger(__name__)

PUSH_BACK = timedelta(seconds=30)
"""For how long a run whose turn raised is left alone, unless there is news of it."""

MAX_TURNS = 20
"""Turns of one run in a row before the others get theirs: a decision may ask for the next one at
once.
"""

Decide = Callable[..., Decision]


class Reconciler:
    """Reconciles runs of one database.

    Args:
        vitals: told how each turn ended.

    Attributes:
        up_since: when this control plane began to hear nodes; None until then.
    """

    def __init__(
        self,
        db: Database,
        clock: Clock,
        *,
        up_since: datetime | None = None,
        decide: Decide = decide,
        vitals: Vitals | None = None,
    ) -> None:
        self._db = db
        self._clock = clock
        self._decide = decide
        self._vitals = vitals or Vitals()
        self._memory = Memory()
        self._watches = Watches()
        self._unreadable: dict[str, str] = {}
        self.up_since = up_since

    def tick(self) -> int:
        """Give every due run its turn; return how many turns there were.

        Raises:
            UnavailableError: the database is out of reach.
        """
        turns = 0
        for run in self.due():
            turns += self._settle(run)
        return turns

    def due(self) -> list[str]:
        """Return the runs that want to be looked at, the longest waiting first."""
        c = tables.runs.c
        with self._db.read() as connection:
            query = (
                select(c.id)
                .where(c.next_look_at <= self._clock.now())
                .order_by(c.next_look_at, c.id)
            )
            return list(connection.scalars(query))

    def _settle(self, run: str) -> int:
        for turn in range(1, MAX_TURNS + 1):
            with logs.about(run=run):
                again = self._take_turn(run)
            if not again:
                return turn
        return MAX_TURNS

    def _take_turn(self, run: str) -> bool:
        """Take one turn of `run` and count it; return whether the next one is due at once."""
        began = time.perf_counter()
        outcome, again = "failed", False
        try:
            outcome, again = self._turn(run)
        except ConflictError as error:
            outcome = "overtaken"
            self._memory.fleet.forget()
            log.info("%s; looking again", error.message)
        except UnavailableError:
            raise
        except UnreadableError as error:
            outcome = "unreadable"
            self._push_back(run)
            self._tell_unreadable(run, error.message)
        except Exception:
            self._push_back(run)
            log.exception("the turn of run %s failed; it is looked at again in %s", run, PUSH_BACK)
        self._vitals.turn(outcome, time.perf_counter() - began)
        return again

    def reconcile(self, run: str) -> bool:
        """Take one turn of `run`; return whether the next one is due at once.

        Raises:
            ConflictError: the run, a slot or a checkpoint was changed meanwhile; nothing was
                written.
        """
        return self._turn(run)[1]

    def _turn(self, run: str) -> tuple[str, bool]:
        now = self._clock.now()
        with self._db.read() as connection:
            loaded = load(
                connection, run, now=now, control_up_since=self.up_since, memory=self._memory
            )
        if loaded is None:
            return "unchanged", False
        decision = self._decide(loaded.snapshot, now=now, judge=self._watches.judge)
        with self._db.write() as connection:
            applying.apply(connection, decision, touched=loaded.touched, now=now)
        if decision.new_attempt is not None or decision.attempt_end is not None:
            self._memory.fleet.forget()
        if _leaves_room(loaded.snapshot, decision):
            with self._db.write() as connection:
                queue.look_at_front(connection, now=now)
        _tell(loaded.snapshot, decision)
        outcome = "changed" if decision.changes_anything else "unchanged"
        return outcome, decision.changes_anything and decision.next_look_at <= now

    def _tell_unreadable(self, run: str, message: str) -> None:
        if self._unreadable.get(run) != message:
            self._unreadable[run] = message
            log.error("run %s is left alone: %s", run, message)

    def _push_back(self, run: str) -> None:
        c = tables.runs.c
        with self._db.write() as connection:
            connection.execute(
                update(tables.runs)
                .where(c.id == run)
                .values(next_look_at=self._clock.now() + PUSH_BACK)
            )


def _leaves_room(snapshot: RunSnapshot, decision: Decision) -> bool:
    """Return whether others in the queue may begin: slots were given back, or one before them has
    left.
    """
    left = decision.state is not None and snapshot.run.state == State.QUEUED
    return left or decision.attempt_end is not None


def _tell(snapshot: RunSnapshot, decision: Decision) -> None:
    if decision.state is not None:
        log.info(
            "run %s: %s -> %s: %s",
            decision.run,
            snapshot.run.state,
            decision.state,
            decision.because.replace("\n", " ")[:500],
            extra={"generation": snapshot.run.generation},
        )
