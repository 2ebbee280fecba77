"""The rank's own end of the spool: frames appended to one file, each by one write, never waiting
for a reader.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from trainmaster.facts import Event
from trainmaster.spool import Header, encode_event, encode_header, encode_row, encode_timeline
from worker.reporting.pulsefile import SUFFIX, PulseFile

MAX_BACKLOG: Final = 10_000
CATCH_UP_FRAMES: Final = 64
"""Of a longer backlog no more is written at a time, so that no step waits for many."""
MAX_TEXT_CHARS: Final = 20_000


class SpoolFile:
    """An append-only file of frames with one writer, of which any thread may append.

    A frame that cannot be written (disk full) is kept, in order, and tried again with the next one:
    training neither stops nor waits for its own monitoring. Beyond `MAX_BACKLOG` the oldest are
    given up. A write goes into the kernel's memory: it does not wait for the disk, as long as the
    kernel has room for what is not yet on it.

    Attributes:
        pulse: where the rank is, beside the spool.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        self._layout = header.row_struct()
        self._backlog: deque[bytes] = deque(maxlen=MAX_BACKLOG)
        self._torn_at: int | None = None
        self.pulse = PulseFile(path.with_suffix(SUFFIX))
        self._lock = threading.Lock()
        if os.fstat(self._fd).st_size == 0:
            self._append(encode_header(header))

    def event(self, kind: str, /, **data: Any) -> None:
        """Append an event that happens now. Long texts are cut at their beginning: the end of a
        traceback says most.
        """
        shortened = {
            key: value[-MAX_TEXT_CHARS:] if isinstance(value, str) else value
            for key, value in data.items()
        }
        event = Event(kind=kind, at=datetime.now(UTC), data=shortened)
        self._append(encode_event(event.encoded()))

    def row(self, step: int, at: float, values: Sequence[float]) -> None:
        """Append the sample row of `step`, which ended at `at` (seconds since the epoch)."""
        self._append(encode_row(self._layout, step, at, values))

    def timeline(self, packed: bytes) -> None:
        """Append the timeline of a step, as `trainmaster.timeline.encode` gives it."""
        self._append(encode_timeline(packed))

    def close(self) -> None:
        """Write what could not be written before, as far as it can be now, and close the file."""
        with self._lock:
            while self._backlog and self._write(self._backlog[0]):
                self._backlog.popleft()
            os.close(self._fd)
        self.pulse.close()

    def _append(self, frame: bytes) -> None:
        with self._lock:
            self._append_alone(frame)

    def _append_alone(self, frame: bytes) -> None:
        if not self._backlog:
            if not self._write(frame):
                self._backlog.append(frame)
            return
        self._backlog.append(frame)
        for _ in range(CATCH_UP_FRAMES):
            if not self._backlog or not self._write(self._backlog[0]):
                return
            self._backlog.popleft()

    def _write(self, frame: bytes) -> bool:
        """Write a whole frame or nothing; return whether it was written."""
        try:
            if self._torn_at is not None:
                os.ftruncate(self._fd, self._torn_at)
                self._torn_at = None
            written = os.write(self._fd, frame)
            if written < len(frame):
                self._torn_at = os.fstat(self._fd).st_size - written
                os.ftruncate(self._fd, self._torn_at)
                self._torn_at = None
        except OSError:
            return False
        return written == len(frame)
