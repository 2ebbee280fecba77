"""What a supervisor does from its first part to its last, in the foreground or the background."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trainmaster.cli.bringup import Installation, bring_up
from trainmaster.cli.session import Api
from trainmaster.cli.supervisor import Supervisor

SUPERVISOR = "supervisor"
INTERRUPTED = 130
"""Exit status when a person ends it before all is up, as of a shell's command after Ctrl-C."""
_TURN_S = 0.2


def connect(url: str, token: str) -> Api:
    """Return a connection to the control plane at `url`."""
    from trainmaster.client import Client

    return Client(url, token, timeout_s=30.0)


class Keeper:
    """This process as the parent of all parts of an installation.

    Attributes:
        stop: set once SIGINT, SIGTERM or SIGHUP has asked for the end.
    """

    def __init__(self, wanted: Installation, supervisor: Supervisor, stop: threading.Event) -> None:
        self._wanted = wanted
        self._supervisor = supervisor
        self.stop = stop

    def bring_up(self, say: Callable[[str], None]) -> Api:
        """Start all parts; see `bringup.bring_up`."""
        return bring_up(
            self._wanted,
            self._supervisor,
            environment=os.environ,
            connect=connect,
            stopping=self.stop.is_set,
            say=say,
        )

    def keep(self) -> None:
        """Restart what dies, until the end is asked for."""
        while not self.stop.wait(_TURN_S):
            self._supervisor.turn()

    def end(self) -> None:
        """End all parts; may be called twice."""
        self._supervisor.stop()


@contextmanager
def keeping(wanted: Installation, *, restart: bool, say: Callable[[str], None]) -> Iterator[Keeper]:
    """Be the installation's supervisor for as long as the block runs; nothing is left after it."""
    stop = threading.Event()

    def ask(*_: object) -> None:
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, ask)
    wanted.home.record_process(SUPERVISOR, os.getpid())
    supervisor = Supervisor(wanted.home, restart=restart, say=say)
    try:
        yield Keeper(wanted, supervisor, stop)
    finally:
        supervisor.stop()
        wanted.home.forget_process(SUPERVISOR, os.getpid())
