"""The one parent of all parts of an installation: starts, restarts and stops them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from trainmaster.cli.backoff import Backoff
from trainmaster.cli.tether import tethered
from trainmaster.errors import UserError
from trainmaster.home import Home

GRACE_S = 10.0
"""Within this a part that was asked to end has ended; then it is killed."""
LOG_LIMIT_BYTES = 32 << 20
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Part:
    """A process of the installation.

    Attributes:
        name: as in `ps` and in the name of its log.
        environment: its whole environment.
        folder: where it runs.
        address: where it listens, if that is known beforehand.
        last_to_stop: it serves the others, so it ends after them.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    address: str | None = None
    last_to_stop: bool = False


@dataclass(slots=True)
class _Child:
    part: Part
    backoff: Backoff = field(default_factory=Backoff)
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    restarts: int = 0
    due_at: float | None = None
    recorded: bool = False


class Supervisor:
    """Parts as children of this process. Its methods are for one thread.

    Args:
        restart: whether a part that dies is started again.
        say: takes sentences about parts that died or came back. It may fail: a full disk or a
            closed terminal ends no training.
    """

    def __init__(
        self,
        home: Home,
        *,
        restart: bool,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.home = home
        self.restart = restart
        self._say = say
        self._clock = clock
        self._sleep = sleep
        self._children: dict[str, _Child] = {}

    def start(self, part: Part) -> None:
        """Start a part and write it down.

        Raises:
            OSError: the process or its log cannot be made.
        """
        child = self._children.setdefault(part.name, _Child(part))
        child.process = _spawn(part, self.home.log(part.name))
        child.started_at, child.due_at, child.recorded = self._clock(), None, False
        problem = self._record(child)
        if problem is not None:
            self._tell(f"{part.name} runs, but cannot be written down yet: {problem}")

    def died(self, name: str) -> str | None:
        """Return how part `name` ended, or None while it runs."""
        child = self._children[name]
        code = None if child.process is None else child.process.poll()
        return None if code is None else _how(code)

    def turn(self) -> None:
        """Look at each part once: note a death, and start again what is due."""
        now = self._clock()
        for name, child in self._children.items():
            if child.process is not None and child.process.poll() is not None:
                self._note_death(name, child, now)
            elif child.process is None and child.due_at is not None and now >= child.due_at:
                self._start_again(name, child, now)
            elif child.process is not None and not child.recorded:
                self._record(child)

    def stop(self, grace_s: float = GRACE_S) -> None:
        """End all parts, those that serve others last; returns when none is left."""
        for last in (False, True):
            wave = [each for each in self._children.values() if each.part.last_to_stop is last]
            self._stop_wave(wave, grace_s)

    def _note_death(self, name: str, child: _Child, now: float) -> None:
        assert child.process is not None
        how = _how(child.process.returncode)
        _kill_group(child.process.pid)  # what it left behind must not hold its port
        child.process = None
        if not self.restart:
            self._tell(f"{name} {how}; it stays down (TRAINMASTER_SUPERVISE=0)")
            return
        delay = child.backoff.delay_s(now - child.started_at)
        child.due_at = now + delay
        self._tell(f"{name} {how}; starting it again in {delay:.0f} s")

    def _start_again(self, name: str, child: _Child, now: float) -> None:
        record = self.home.process(name)
        if record is not None and record.alive:  # someone started one in its place
            child.due_at = now + 1.0
            return
        child.restarts += 1
        try:
            self.start(child.part)
        except OSError as error:
            delay = child.backoff.delay_s(0.0)
            child.due_at = now + delay
            self._tell(f"{name} cannot be started ({error}); trying again in {delay:.0f} s")
            return
        self._tell(f"{name} was started again")

    def _stop_wave(self, wave: Sequence[_Child], grace_s: float) -> None:
        running = [each.process for each in wave if each.process is not None]
        for process in running:
            if process.poll() is None:
                process.terminate()
        deadline = self._clock() + grace_s
        while self._clock() < deadline and any(each.poll() is None for each in running):
            self._sleep(_LOOK_S)
        for process in running:
            _kill_group(process.pid)
            process.wait()
        for child in wave:
            if child.process is not None:
                self.home.forget_process(child.part.name, child.process.pid)
            child.process, child.due_at = None, None

    def _tell(self, sentence: str) -> None:
        with suppress(OSError):
            self._say(sentence)

    def _record(self, child: _Child) -> OSError | UserError | None:
        """Write a running part down for `ps`; return why that cannot be done now."""
        assert child.process is not None
        part = child.part
        try:
            self.home.record_process(
                part.name, child.process.pid, part.address, restarts=child.restarts
            )
        except (OSError, UserError) as error:
            return error
        child.recorded = True
        return None


def _spawn(part: Part, log: Path) -> subprocess.Popen[bytes]:
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > LOG_LIMIT_BYTES:
        log.replace(log.with_suffix(".log.1"))
    with log.open("ab") as output:
        # A session of its own: Ctrl-C in the terminal reaches the supervisor alone, which ends the
        # parts in order.
        return subprocess.Popen(
            tethered(tuple(part.command)),
            env=dict(part.environment),
            cwd=part.folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _how(code: int) -> str:
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"ended with status {code}"
