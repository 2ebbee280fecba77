"""What happens by itself, in the process that leads: turns of due runs, samples that are sealed and
grow old, chores of silent nodes, old codes.

Schedules live in memory only; what must not be lost is in the tables. Whoever has news calls
`wake`, and the due runs get their turn at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from apscheduler.events import EVENT_JOB_MAX_INSTANCES, JobSubmissionEvent
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import Connection, delete, or_

from control.clock import Clock
from control.db import outbox, tables, timelines
from control.db.fleet import chores
from control.db.samples import rollups, sealing
from control.db.samples.ageing import Ages
from control.db.sql.engine import Database
from control.db.sql.faults import UnreadableError
from control.leadership import Fence
from control.reconciler import Reconciler
from control.vitals import Vitals
from trainmaster.errors import ConflictError, UnavailableError

log = logging.getLogger(__name__)

TICK_S = 0.25
MOST_PAUSE_S = 2.0
"""How long the turns pause at most while the database cannot be used."""
TEND_EVERY_S = 20.0
TAILS_AT_ONCE = 64
AGE_EVERY_S = 300.0
AGE_FOR_S = 60.0
"""For how long samples are rolled up at a time, so that other work gets its turn."""
SWEEP_EVERY_S = 5.0
FORGET_EVERY_S = 3600.0
KEEP_ENDED_TOKENS = timedelta(days=30)


class Clockwork:
    """Runs the periodic work of one term in threads of its own. To be started by the leader alone.

    Args:
        fence: asked first in each transaction where another control plane may have taken over.
        ages: how old samples may grow; None for any age.
        errands: further work, and every how many seconds it is due.
        vitals: told how each piece of work ended.

    Attributes:
        skipped: how often a piece of work was due while it still ran.
    """

    def __init__(
        self,
        db: Database,
        clock: Clock,
        reconciler: Reconciler,
        *,
        fence: Fence | None = None,
        ages: Ages | None = None,
        errands: Sequence[tuple[Callable[[], None], float]] = (),
        vitals: Vitals | None = None,
    ) -> None:
        self._db = db
        self._vitals = vitals or Vitals()
        self._errands = errands
        self._ages = ages or Ages(None, None)
        self._fence = fence
        self._clock = clock
        self._reconciler = reconciler
        self._news = threading.Event()
        self._stopping = threading.Event()
        self._turns = threading.Thread(target=self._take_turns, name="reconciler", daemon=True)
        self._scheduler = BackgroundScheduler(
            executors={"default": ThreadPoolExecutor(2)},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": 30},
            timezone="UTC",
        )
        self.skipped = 0

    def start(self) -> None:
        """Begin."""
        for work, every_s in (
            (self.tend_samples, TEND_EVERY_S),
            (self.age_samples, AGE_EVERY_S),
            (self.release_chores, SWEEP_EVERY_S),
            (self.forget, FORGET_EVERY_S),
            *self._errands,
        ):
            # What is skipped is logged under its name.
            name = work.__name__
            self._scheduler.add_job(
                self._guarded(work), "interval", seconds=every_s, id=name, name=name
            )
        self._scheduler.add_listener(self._count_skipped, EVENT_JOB_MAX_INSTANCES)
        self._scheduler.start()
        self._turns.start()

    def stop(self) -> None:
        """End, after the work that is under way."""
        self._stopping.set()
        self._news.set()
        self._scheduler.shutdown(wait=True)
        self._turns.join()

    def wake(self) -> None:
        """Have the due runs looked at now."""
        self._news.set()

    def tend_samples(self) -> None:
        """Join small chunks of samples, of many ranks in a transaction, and seal old ones, of one
        rank in a transaction.
        """
        with self._db.read() as connection:
            seals = sealing.may_seal(connection, now=self._clock.now())
            found = sealing.due(connection, seals=seals)
        short = [tail for tail in found if not tail.seals]
        for first in range(0, len(short), TAILS_AT_ONCE):
            if self._stopping.is_set():
                return
            self._join(short[first : first + TAILS_AT_ONCE])
        for tail in found:
            if self._stopping.is_set():
                return
            if tail.seals:
                with self._but_damaged(tail), self._write() as connection:
                    sealing.tend(connection, tail, seals=True)

    def _join(self, tails: Sequence[sealing.Tail]) -> None:
        try:
            with self._write() as connection:
                sealing.join(connection, tails)
        except UnreadableError:
            for tail in tails:
                with self._but_damaged(tail), self._write() as connection:
                    sealing.join(connection, [tail])

    def age_samples(self) -> None:
        """Roll up or remove samples that are old enough, for a while at a time."""
        until = time.monotonic() + AGE_FOR_S
        with self._db.read() as connection:
            found = rollups.due(connection, self._ages, now=self._clock.now())
        for old in found:
            with self._but_damaged(old):
                for _ in rollups.age(self._db.read, self._write, old, now=self._clock.now()):
                    if self._stopping.is_set() or time.monotonic() > until:
                        return

    @contextmanager
    def _but_damaged(self, what: sealing.Tail | rollups.Old) -> Iterator[None]:
        """Leave samples alone that cannot be read, so that they spoil no others."""
        try:
            yield
        except UnreadableError as error:
            log.error(
                "samples of run %s, generation %d, stay as they are: %s",
                what.run,
                what.generation,
                error.message,
                extra={"run": what.run, "generation": what.generation},
            )

    def release_chores(self) -> None:
        """Give chores of silent nodes to others."""
        with self._write() as connection:
            chores.release(connection, now=self._clock.now())

    def forget(self) -> None:
        """Remove login codes that have expired, tokens that ended and chores that were done long
        ago, and the timelines of runs whose ranks' series go.
        """
        now = self._clock.now()
        t, codes = tables.tokens.c, tables.login_codes.c
        with self._write() as connection:
            connection.execute(
                delete(tables.login_codes).where(codes.expires_at < now - timedelta(hours=1))
            )
            if self._ages.kept is not None:
                timelines.remove_old(connection, before=now - self._ages.kept)
            ended = now - KEEP_ENDED_TOKENS
            outbox.forget(connection, now=now)
            chores.forget(connection, now=now)
            connection.execute(
                delete(tables.tokens).where(or_(t.expires_at < ended, t.revoked_at < ended))
            )

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with self._db.write() as connection:
            if self._fence is not None:
                self._fence(connection)
            yield connection

    def _take_turns(self) -> None:
        # A thread of its own rather than a scheduled job: it must react at once to news, and a
        # timer cannot.
        look = self._guarded(self._reconciler.tick)
        pause_s = TICK_S
        while not self._stopping.is_set():
            self._news.clear()
            if look():
                pause_s = TICK_S
                self._news.wait(TICK_S)
            else:
                # News cannot be read either, so none shortens the pause.
                self._stopping.wait(pause_s)
                pause_s = min(2 * pause_s, MOST_PAUSE_S)

    def _guarded(self, work: Callable[[], object]) -> Callable[[], bool]:
        """Return `work` as something that never raises, and says whether the database was there.

        Of a database that stays away it is told once, and once more when it is back.
        """
        away: list[str] = []

        def guarded() -> bool:
            began, ending = time.perf_counter(), "done"
            try:
                work()
            except UnavailableError as error:
                ending = "put_off"
                if error.message not in away:
                    log.warning("%s is put off: %s", work.__name__, error.message)
                    away.append(error.message)
                return False
            except ConflictError as error:
                ending = "put_off"
                log.warning("%s is put off: %s", work.__name__, error.message)
            except Exception:
                ending = "failed"
                log.exception("%s failed", work.__name__)
            finally:
                self._vitals.work(work.__name__, ending, time.perf_counter() - began)
            if away:
                log.info("%s goes on", work.__name__)
                away.clear()
            return True

        return guarded

    def _count_skipped(self, _event: JobSubmissionEvent) -> None:
        self.skipped += 1
