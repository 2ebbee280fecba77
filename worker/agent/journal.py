"""The agent's own spool: facts of the node, kept until the control plane has them."""

from __future__ import annotations

import os
import secrets
import time
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainmaster.errors import IntegrityError
from trainmaster.facts import Event
from trainmaster.ids import agent_stream
from trainmaster.spool import Header, encode_event, encode_header
from worker.agent.spools import SpoolReader

ROTATE_BYTES = 4 << 20
_READ_BYTES = 1 << 20


def journal_files(folder: Path) -> dict[str, Path]:
    """Return the journals in a folder by the name of their stream, oldest first."""
    paths = sorted(folder.glob("agent-*.spool"))
    return {agent_stream(path.stem.removeprefix("agent-")): path for path in paths}


def journal_events(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield what the journals in a folder tell, oldest first, up to a damaged frame of each."""
    for path in journal_files(folder).values():
        reader, offset = SpoolReader(path), 0
        while True:
            try:
                frames = reader.read(offset, _READ_BYTES)
            except IntegrityError:
                break
            if frames.end_offset == offset:
                break
            offset = frames.end_offset
            yield from frames.events


class Journal:
    """Appends events to a file of its own, begun anew in each life of the agent.

    A file of an earlier life is never continued: a crash of the machine may have left it shorter
    than what the control plane has stored of it. What cannot be written now (disk full) is kept in
    memory, in order, and tried again with the next event.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._unwritten: deque[bytes] = deque()
        self._begin()

    def append(self, kind: str, data: dict[str, Any], at: datetime | None = None) -> None:
        """Write down that `kind` has happened, by default now."""
        event = Event(kind=kind, at=at or datetime.now(UTC), data=data)
        self._unwritten.append(encode_event(event.encoded()))
        self.flush()
        if self._end > ROTATE_BYTES and not self._unwritten:
            os.close(self._file)
            self._begin()

    def flush(self) -> None:
        """Write what could not be written before."""
        while self._unwritten:
            frame = self._unwritten[0]
            try:
                written = os.pwrite(self._file, frame, self._end)
                if written < len(frame):
                    os.ftruncate(self._file, self._end)
                    return
            except OSError:
                return
            self._end += written
            self._unwritten.popleft()

    def close(self) -> None:
        """Write what is left, as far as it can be written, and close the file."""
        self.flush()
        os.close(self._file)

    def _begin(self) -> None:
        incarnation = f"{time.time_ns():016x}-{secrets.token_hex(2)}"  # names sort by age
        self.stream = agent_stream(incarnation)
        self.path = self._folder / f"agent-{incarnation}.spool"
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._end = 0
        self._unwritten.append(encode_header(Header(self.stream)))
        self.flush()
