"""What routes work with: the database, the clock, the settings, and how to wake the reconciler."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

from fastapi import Depends, Request

from control.clock import Clock
from control.db.accounts import Accounts
from control.db.overviews import Overviews
from control.db.series.charts import Charts
from control.db.sql.engine import Database
from control.group_commit import GroupCommit
from control.rights import Caller
from control.settings import Settings
from control.vitals import Vitals

MAX_WAITING = 8
"""A fifth of the threads that serve requests."""


@dataclass(frozen=True, slots=True)
class Shell:
    """One per process.

    Attributes:
        wake: has the due runs looked at now.
        since: since when this process has been hearing nodes, without a gap in time.
        skipped: how often periodic work was due while it still ran.
        leads: whether this process does the periodic work just now.
        waiting: seats for submissions that wait for a node to describe their workload. They hold a
            thread each, and some must be left for the node that is to answer.
        syncs: stores what nodes say.
        accounts: where the wall time of runs went.
        overviews: what was told of runs in lists.
        charts: what long runs come to on charts.
        vitals: what the periodic work comes to.
        draining: set once this process is about to stop. Nothing may wait for long any more.
    """

    settings: Settings
    db: Database
    clock: Clock
    wake: Callable[[], None]
    since: Callable[[], datetime]
    syncs: GroupCommit
    skipped: Callable[[], int] = int
    leads: Callable[[], bool] = bool
    waiting: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(MAX_WAITING))
    accounts: Accounts = field(default_factory=Accounts)
    overviews: Overviews = field(default_factory=Overviews)
    charts: Charts = field(default_factory=Charts)
    vitals: Vitals = field(default_factory=Vitals)
    draining: threading.Event = field(default_factory=threading.Event)

    @property
    def up_since(self) -> datetime:
        """Since when silences of nodes count."""
        return self.since()


def shell_of(request: Request) -> Shell:
    """Return the process's shell."""
    shell: Shell = request.app.state.shell
    return shell


def caller_of(request: Request) -> Caller:
    """Return whose token the request carries; the door has let it in."""
    caller: Caller = request.state.caller
    return caller


WithShell = Annotated[Shell, Depends(shell_of)]
ByCaller = Annotated[Caller, Depends(caller_of)]
