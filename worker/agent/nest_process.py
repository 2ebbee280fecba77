"""The agent's side of a nest: a child process, spoken to over pipes, started anew when it dies."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from worker.nest.messages import Fact, Ready, Request, encode, parse_fact

NEST_COMMAND = (sys.executable, *(["-P"] if sys.flags.safe_path else []), "-m", "worker.nest")
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 30.0
_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class NestEnded:
    """The nest is dead, and with it, by the kernel's hand, all that it had forked."""

    exit_code: int | None
    signal: int | None


class NestProcess:
    """A nest that lives for as long as the agent does, in one process after another.

    Must be used by the agent's main thread alone: the kernel ends the nest when the thread that
    started it ends.
    """

    def __init__(
        self, command: Sequence[str], *, environment: Mapping[str, str], log: Path
    ) -> None:
        self._command = (*command, "--agent", str(os.getpid()))
        self._environment = dict(environment)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._line = b""
        self._pause_s = FIRST_PAUSE_S
        self._start_at = 0.0
        self.ready = False

    @property
    def pid(self) -> int | None:
        """Its pid, or None while it does not run."""
        return self._process.pid if self._process else None

    @property
    def ear(self) -> int | None:
        """The descriptor that becomes readable when it says something."""
        return self._process.stdout.fileno() if self._process and self._process.stdout else None

    def start(self, now: float) -> bool:
        """Start it if it does not run and its pause is over; return whether it was started."""
        if self._process is not None or now < self._start_at:
            return False
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment,
                start_new_session=True,  # Ctrl-C at the terminal is the agent's to handle
                bufsize=0,
            )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._line = b""
        return True

    def send(self, request: Request) -> bool:
        """Ask for something; return False if the nest is not there to hear it."""
        if self._process is None or self._process.stdin is None:
            return False
        try:
            self._process.stdin.write(encode(request))
        except OSError:
            return False
        return True

    def poll(self, now: float) -> list[Fact | NestEnded]:
        """Return what it has said since the last call; if it has died, that comes last."""
        if self._process is None:
            return []
        code = self._process.poll()
        heard: list[Fact | NestEnded] = list(self._hear())
        for fact in heard:
            if isinstance(fact, Ready):
                self.ready = True
                self._pause_s = FIRST_PAUSE_S
        if code is not None:
            self._close()
            self._start_at = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
            heard.append(NestEnded(code if code >= 0 else None, -code if code < 0 else None))
        return heard

    def end(self) -> None:
        """End it and all that it has forked, at once and for good."""
        self._start_at = math.inf
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._close()

    def _hear(self) -> list[Fact]:
        ear = self.ear
        assert ear is not None
        facts: list[Fact] = []
        while True:
            try:
                data = os.read(ear, _READ_BYTES)
            except BlockingIOError:
                return facts
            if not data:
                return facts
            *lines, self._line = (self._line + data).split(b"\n")
            facts += [parse_fact(line) for line in lines]

    def _close(self) -> None:
        assert self._process is not None
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process = None
        self.ready = False
