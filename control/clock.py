"""The one clock of the control plane, handed to those who need it, so that tests may bring their
own.

Time that is stored or compared with what is stored follows one clock for all control planes: the
database's (`control.db.instants`). It is not asked each time: `SteadyClock` knows how far it is
from the monotonic clock of this machine, and runs on that in between, so that a step of a wall
clock cannot come into a duration.

When the time that is followed has gone forwards (a machine that slept, a clock that was set), it is
followed at once, and who counts silences is told: nobody could be heard meanwhile. They are told as
well when this process was halted for a while. When it has gone
back, this clock goes at half speed until it is reached: no instant comes before an earlier one. A
control plane that begins meanwhile begins where the others are, known by what they have written.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from trainmaster.errors import TrainmasterError

log = logging.getLogger(__name__)

REFRESH_S = 3.0
"""A third of a lease: when the database's clock steps, control planes agree again before that costs
a node its lease.
"""

IGNORED_S = 0.05
"""Differences that the way to the database and back may explain."""

STEP_S = 1.0
"""From here on time has been set, or the machine has slept; below, clocks drift."""

HALTED_S = 5.0
"""A process in which nobody has asked for the time for so long was halted: periodic work asks four
times a second, and this clock looks at its source more often than that.
"""

SLOW_S = 1.0
"""A reading that took longer says too little."""

BELIEVED = timedelta(hours=1)
"""What is written further ahead than this was written by mistake."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a source of time says.

    Attributes:
        now: the present instant.
        written: the newest instant that any control plane has written; None when there is none.
    """

    now: datetime
    written: datetime | None = None


Source = Callable[[], Reading]


class Clock(Protocol):
    """Says what time it is."""

    def now(self) -> datetime:
        """Return an aware UTC instant."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)


class SteadyClock:
    """Follows a source of time without ever going back. May be shared by threads.

    Args:
        source: the time to follow. While it raises an error of ours, the clock goes on as it did.
        monotonic: seconds that pass.
    """

    def __init__(self, source: Source, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._monotonic = monotonic
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._told: list[Callable[[datetime], None]] = []
        begin = source()
        self._anchor, self._anchored_at = max(begin.now, _believed(begin)), monotonic()
        self._asked_at = self._anchored_at
        self._owed_s = 0.0
        """How far this clock is ahead of its source since `_anchored_at`, and has to slow down."""

    def now(self) -> datetime:
        with self._lock:
            asked_at = self._monotonic()
            halted_s, self._asked_at = asked_at - self._asked_at, asked_at
            now = self._at(asked_at)
            if halted_s > HALTED_S:
                log.warning("halted for %.1f s; nodes get a whole lease", halted_s)
                self._tell(now)
            return now

    def when_stepped(self, tell: Callable[[datetime], None]) -> None:
        """Have `tell` called with the new time before it is shown, each time that this clock steps
        forwards or this process has been halted.
        """
        self._told.append(tell)

    def refresh(self) -> None:
        """Look at the source again, and follow it.

        Raises:
            TrainmasterError: the source could not be asked.
        """
        self.now()  # so that this counts as asking
        asked_at = self._monotonic()
        told = self._source()
        answered_at = self._monotonic()
        took_s = answered_at - asked_at
        if took_s > SLOW_S:
            return
        wanted = told.now + timedelta(seconds=took_s / 2)
        with self._lock:
            shown = self._at(answered_at)
        if (_believed(told) - shown).total_seconds() > STEP_S:
            wanted = max(wanted, _believed(told))
        ahead_s = (shown - wanted).total_seconds()
        if abs(ahead_s) <= IGNORED_S:
            return
        if ahead_s < -STEP_S:
            log.warning("time went forwards by %.1f s; nodes get a whole lease", -ahead_s)
            self._tell(wanted)
        elif ahead_s > self._owed_s + STEP_S:  # further than is known
            log.warning("time went back by %.1f s; going slow until it is reached", ahead_s)
        with self._lock:
            at = self._monotonic()
            passed = timedelta(seconds=at - answered_at)
            self._anchor, self._anchored_at = max(self._at(at), wanted + passed), at
            self._owed_s = max(0.0, ahead_s)

    def start(self) -> None:
        """Begin to look at the source every few seconds."""
        self._thread = threading.Thread(target=self._follow, name="clock", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End that."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _follow(self) -> None:
        trouble = ""
        while not self._stopping.wait(REFRESH_S):
            try:
                self.refresh()
                trouble = ""
            except TrainmasterError as error:
                if trouble != error.message:
                    trouble = error.message
                    log.info("the clock is not compared with its source now: %s", trouble)

    def _tell(self, now: datetime) -> None:
        for tell in self._told:
            tell(now)

    def _at(self, monotonic_s: float) -> datetime:
        passed_s = monotonic_s - self._anchored_at
        return self._anchor + timedelta(seconds=passed_s - min(self._owed_s, passed_s / 2))


def _believed(told: Reading) -> datetime:
    """Return where the other control planes are at least, unless that is absurd."""
    written = told.written
    return told.now if written is None or written - told.now > BELIEVED else written
