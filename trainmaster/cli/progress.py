"""Two ways to show progress: a bar that moves, for terminals, and lines, for logs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as RichProgress

from trainmaster.cli.follow import Display
from trainmaster.cli.output import shown
from trainmaster.cli.pace import Progress

LINE_EVERY_S = 5.0


class Bar:
    """One moving line: bar, steps, loss, speed, remaining time, state. Notes scroll above it."""

    def __init__(self, stream: TextIO) -> None:
        self._rich = RichProgress(
            TextColumn("{task.fields[state]}", style="bold", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}", markup=False),
            console=Console(file=stream, markup=False, highlight=False, emoji=False),
            expand=True,
            refresh_per_second=4,
        )
        self._task = self._rich.add_task("", total=None, state="", numbers="")
        self._rich.start()

    def update(self, progress: Progress) -> None:
        """Move the bar."""
        *numbers, _ = progress.numbers().split(" · ")
        self._rich.update(
            self._task,
            completed=progress.step,
            total=progress.target or None,
            state=progress.state,
            numbers=" · ".join(numbers),
        )

    def note(self, sentence: str) -> None:
        """Print above the bar."""
        self._rich.console.print(shown(sentence))

    def close(self) -> None:
        """Stop moving."""
        self._rich.stop()


class Lines:
    """A line every few seconds, and at every change of state."""

    def __init__(self, stream: TextIO, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._monotonic = monotonic
        self._shown_at: float | None = None
        self._state = ""

    def update(self, progress: Progress) -> None:
        """Write a line if it is time for one."""
        now = self._monotonic()
        recent = self._shown_at is not None and now - self._shown_at < LINE_EVERY_S
        if recent and progress.state == self._state:
            return
        self._shown_at, self._state = now, progress.state
        self.note(f"step {progress.step}/{progress.target} · {progress.numbers()}")

    def note(self, sentence: str) -> None:
        """Write a line."""
        self._stream.write(shown(sentence) + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Nothing is left to do."""


def display_on(stream: TextIO) -> Display:
    """Return a progress bar on a terminal, and plain lines every few seconds elsewhere."""
    return Bar(stream) if stream.isatty() else Lines(stream)
