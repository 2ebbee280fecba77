"""Follows a run to its end, through restarts of the control plane, and shows how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from trainmaster.cli.pace import Pace, Progress
from trainmaster.cli.session import Api, segment
from trainmaster.errors import UnavailableError

PATIENCE_S = 600.0
"""For how long a control plane that is away is waited for."""
LOOK_S = 1.0


class Display(Protocol):
    """Where progress is shown."""

    def update(self, progress: Progress) -> None:
        """Show how far the run is."""

    def note(self, sentence: str) -> None:
        """Show a sentence beside the progress."""

    def close(self) -> None:
        """Leave the screen as it is."""


def follow(
    api: Api,
    run: str,
    display: Display,
    *,
    sleep: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
    stopping: Callable[[], bool] = lambda: False,
) -> dict[str, Any] | None:
    """Show the run until it ends; return its last state, or None when `stopping` came true.

    Raises:
        UnavailableError: the control plane was away for ten minutes.
    """
    pace, told = Pace(), ""
    lost_at: float | None = None
    while not stopping():
        now = monotonic()
        try:
            seen: dict[str, Any] = api.get(f"/v1/runs/{segment('run', run)}")
        except UnavailableError as error:
            if lost_at is None:
                lost_at = now
                display.note(f"{error.message}; waiting for it (training goes on meanwhile)")
            if now - lost_at > PATIENCE_S:
                raise
            sleep(LOOK_S)
            continue
        if lost_at is not None:
            lost_at = None
            display.note("the control plane is back")
        progress = pace.progress(seen, monotonic())
        if progress.because and progress.because != told and progress.state != "running":
            told = progress.because
            display.note(f"{progress.state}: {told}")
        display.update(progress)
        if progress.over:
            return seen
        sleep(LOOK_S)
    return None
