"""What routes work with: the database, the clock, the settings, and how to wake the reconciler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import Depends, Request

from control.auth import Caller
from control.clock import Clock
from control.db.engine import Database
from control.settings import Settings


@dataclass(frozen=True, slots=True)
class Shell:
    """One per process.

    Attributes:
        wake: has the due runs looked at now.
        up_since: when this process began to hear nodes.
        skipped: how often periodic work was due while it still ran.
    """

    settings: Settings
    db: Database
    clock: Clock
    wake: Callable[[], None]
    up_since: datetime
    skipped: Callable[[], int] = int


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
