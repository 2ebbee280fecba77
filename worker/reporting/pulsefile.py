"""The rank's own end of its pulse: where it is, overwritten in place each time that changes; and
where it stands, written when a signal asks.

A write of some bytes into the kernel's memory costs about a microsecond. One that fails (disk full)
is left out: the agent then sees an older beat, and the next one is tried again.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from trainmaster.pulse import Activity, Section, encode

SUFFIX: Final = ".pulse"
"""Of the file beside a rank's spool."""
STACKS_SUFFIX: Final = ".stacks"
"""Of the file into which a rank writes its stacks."""
STACKS_SIGNAL: Final = signal.SIGRTMIN + 5
"""Has a rank write the stacks of its threads; no program is known to use it for something else."""


class PulseFile:
    """One rank's pulse. It begins in the section `STARTING`."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
        self._section, self._step, self._activity = Section.STARTING, 0, Activity.OTHER
        self._progress_at = time.monotonic()
        self._write(self._progress_at)

    def enter(self, section: Section, step: int | None = None) -> None:
        """Tell that a section, or the next step, begins."""
        self._section, self._activity = section, Activity.OTHER
        self._step = self._step if step is None else step
        self._progress_at = time.monotonic()
        self._write(self._progress_at)

    def turn_to(self, activity: Activity) -> Activity:
        """Tell that this activity begins; return the one before it."""
        before = self._activity
        self._activity = activity
        self._write(time.monotonic())
        return before

    @contextmanager
    def doing(self, activity: Activity) -> Iterator[None]:
        """Tell that the body is this activity; after it the one before goes on."""
        before = self.turn_to(activity)
        yield
        self.turn_to(before)

    def close(self) -> None:
        """Close the file; what it says stays."""
        os.close(self._fd)

    def _write(self, now: float) -> None:
        beat = encode(self._section, self._activity, self._step, self._progress_at, now)
        try:  # `suppress` takes as long as the write
            os.pwrite(self._fd, beat, 0)
        except OSError:
            return


def show_stacks_when_asked(path: Path) -> None:
    """Have `STACKS_SIGNAL` append the Python stacks of all threads to `path`, whatever this process
    is doing then, a loop in C included.
    """
    file = path.open("ab", buffering=0)
    faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True, chain=False)
