"""The rank's own end of the spool: frames appended to one file, each by one write, never waiting
for a reader.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from trainmaster.spool import Header, encode_event, encode_header, encode_row
from trainmaster.wire import Event

MAX_BACKLOG: Final = 10_000
MAX_TEXT_CHARS: Final = 20_000


class SpoolFile:
    """An append-only file of frames with one writer.

    A frame that cannot be written (disk full) is kept, in order, and tried again with the next one:
    training does not stop for its own monitoring. Beyond `MAX_BACKLOG` the oldest are given up.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        self._layout = header.row_struct()
        self._backlog: deque[bytes] = deque(maxlen=MAX_BACKLOG)
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
        self._append(encode_event(event.model_dump_json().encode()))

    def row(self, step: int, at: float, values: Sequence[float]) -> None:
        """Append the sample row of `step`, which ended at `at` (seconds since the epoch)."""
        self._append(encode_row(self._layout, step, at, values))

    def beat(self) -> None:
        """Renew the file's time of change: alive, with nothing to tell."""
        os.utime(self._fd)

    def close(self) -> None:
        """Close the file; nothing is buffered."""
        os.close(self._fd)

    def _append(self, frame: bytes) -> None:
        self._backlog.append(frame)
        while self._backlog:
            if not self._write(self._backlog[0]):
                return
            self._backlog.popleft()

    def _write(self, frame: bytes) -> bool:
        """Write a whole frame or nothing; return whether it was written."""
        try:
            written = os.write(self._fd, frame)
        except OSError:
            return False
        if written < len(frame):
            os.ftruncate(self._fd, os.fstat(self._fd).st_size - written)
        return written == len(frame)
