"""Kills control planes with -9 at random moments, halts some for a while, asks some to stop, and
starts them again.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence

import psycopg

from tests.services.planes import ControlPlane, epoch, leader_pid

RESTART_AFTER_S = (0.3, 3.0)
HALTED_S = 6.0
"""Longer than PostgreSQL waits for a word of the leader."""


class Killer(threading.Thread):
    """Ends control planes until it is stopped.

    Args:
        every_s: how long it waits between two.
        halts: whether it also halts them for a while, and asks them to stop.

    Attributes:
        takeovers_s: how long it took after the end of a leader until another one led, where another
            was ready; where none was, the time until one had started is in `starts_s`.
    """

    def __init__(
        self, planes: Sequence[ControlPlane], database_url: str, *, every_s: float, halts: bool
    ) -> None:
        super().__init__(name="killer", daemon=True)
        self.done = Counter[str]()
        self.takeovers_s: list[float] = []
        self.starts_s: list[float] = []
        self.failure: BaseException | None = None
        self._planes = planes
        self._url = database_url
        self._every_s = every_s
        self._halts = halts
        self._stopping = threading.Event()
        self._hint = threading.Event()
        self._repairs: list[threading.Thread] = []

    def hint(self) -> None:
        """Say that something is being done just now."""
        self._hint.set()

    def abandon(self) -> None:
        """Have it end by itself, whatever it is doing."""
        self._stopping.set()

    def stop(self) -> None:
        """End, and have all control planes ready again."""
        self._stopping.set()
        self.join()
        for each in self._repairs:
            each.join()
        for plane in self._planes:
            plane.wait_ready()

    def run(self) -> None:
        try:
            while not self._stopping.wait(random.uniform(0.3, 1.7) * self._every_s):
                if random.random() < 0.5:
                    self._hint.clear()
                    self._hint.wait(self._every_s)
                    time.sleep(random.uniform(0, 0.03))
                self._end_one()
        except BaseException as error:
            self.failure = error
            raise

    def _end_one(self) -> None:
        ready = [plane for plane in self._planes if plane.runs and plane.status() == 200]
        # Now and then the last one goes as well.
        if len(ready) < 2 and (not ready or random.random() < 0.8):
            return
        leader = leader_pid(self._url)
        leading = [plane for plane in ready if plane.pid == leader]
        chosen = random.choice(leading if leading and random.random() < 0.6 else ready)
        how = random.choices(("kill", "halt", "stop"), (7, 2, 1))[0] if self._halts else "kill"
        began, before = time.monotonic(), epoch(self._url)
        led = chosen.pid == leader
        self.done[f"{how} of {'the leader' if led else 'another'}"] += 1
        if how == "kill":
            chosen.kill()
        else:
            chosen.signal(signal.SIGSTOP if how == "halt" else signal.SIGTERM)
        repair = threading.Thread(target=self._repair, args=(chosen, how), daemon=True)
        repair.start()
        self._repairs.append(repair)
        if led:
            taken = self.takeovers_s if len(ready) > 1 else self.starts_s
            taken.append(self._takeover_s(before, began))

    def _takeover_s(self, before: int, began: float) -> float:
        while time.monotonic() - began < 180:
            try:
                # It may be the same one: a halted leader that wakes up before another has started.
                if epoch(self._url) > before and leader_pid(self._url) is not None:
                    return time.monotonic() - began
            except psycopg.Error:
                pass
            time.sleep(0.01)
        raise AssertionError("nobody led for three minutes")

    def _repair(self, plane: ControlPlane, how: str) -> None:
        if how == "halt":
            time.sleep(HALTED_S)
            plane.signal(signal.SIGCONT)
            return
        if how == "stop":
            assert plane.wait() == 0, plane.tail()
        time.sleep(random.uniform(*RESTART_AFTER_S))
        plane.start()
        plane.wait_ready()
