"""Whether the kernel kills processes for lack of memory: its own counters, looked at before and
after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

COUNTERS: Sequence[tuple[Path, str]] = (
    (Path("/sys/fs/cgroup/memory.events"), "oom_kill"),
    (Path("/proc/vmstat"), "oom_kill"),
)
"""File and line, the narrower first: this container's, and the machine's."""


@dataclass(frozen=True, slots=True)
class _Count:
    source: Path
    number: int


def read_text(path: Path) -> str:
    """Return a small file of the kernel's, "" where there is none."""
    try:
        return path.read_text()
    except OSError:
        return ""


class Starvation:
    """Remembers how many processes the kernel has killed for lack of memory.

    Args:
        read: reads one of `COUNTERS`' files.
    """

    def __init__(self, read: Callable[[Path], str] = read_text) -> None:
        self._read = read
        self._last = self._counts()

    def look(self) -> None:
        """Take what has happened so far as nothing new."""
        self._last = self._counts()

    def evidence(self) -> str | None:
        """Return what has been counted since the last look, in words; None where nothing was."""
        before = {count.source: count.number for count in self._last}
        self._last = self._counts()
        for count in self._last:
            earlier = before.get(count.source)
            if earlier is not None and count.number > earlier:
                return (
                    "out of memory: the kernel kills processes for lack of memory here "
                    f"(oom_kill in {count.source} rose from {earlier} to {count.number})"
                )
        return None

    def _counts(self) -> list[_Count]:
        found = []
        for source, name in COUNTERS:
            for line in self._read(source).splitlines():
                key, _, number = line.partition(" ")
                if key == name and number.strip().isdecimal():
                    found.append(_Count(source, int(number)))
        return found
