"""How much memory this node, or the group of processes that we are in, has left. No torch."""

from __future__ import annotations

import resource
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

RESERVE_RATIO: Final = 0.1
"""So much of a node's memory stays free of states kept for their own sake: with less left, they are
given up.
"""
_MEMINFO: Final = Path("/proc/meminfo")
_GROUP: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/status")


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes in all, and bytes that may still be used; what caches could give back is free."""

    total: int
    available: int

    def bears(self, num_bytes: int) -> bool:
        """Return whether so many bytes more leave the reserve untouched."""
        return self.available - num_bytes >= self.total * RESERVE_RATIO


def read(meminfo: Path = _MEMINFO, group: Path = _GROUP) -> HostMemory:
    """Ask the kernel: the node's memory, or the limit of our control group where that is nearer."""
    facts = parse_meminfo(meminfo.read_bytes())
    with suppress(OSError, ValueError):
        limit = int((group / "memory.max").read_text())  # "max" where there is none
        used = int((group / "memory.current").read_text()) - _reclaimable(group)
        if limit - used < facts.available:
            return HostMemory(min(limit, facts.total), max(0, limit - used))
    return facts


def leave_the_reserve() -> None:
    """Have this process, for the rest of its life, get a MemoryError rather than what the node
    needs for others.
    """
    now = read()
    spare = max(0, now.available - int(now.total * RESERVE_RATIO))
    limit = _data_bytes(_OWN.read_bytes()) + spare
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def _data_bytes(status: bytes) -> int:
    """Return what RLIMIT_DATA counts of a process."""
    [line] = [each for each in status.splitlines() if each.startswith(b"VmData:")]
    return int(line.split()[1]) * 1024


def parse_meminfo(meminfo: bytes) -> HostMemory:
    """Return what /proc/meminfo tells in its first lines."""
    facts = dict(line.split(b":", 1) for line in meminfo.splitlines()[:3])
    total, available = (
        int(facts[name].split()[0]) * 1024 for name in (b"MemTotal", b"MemAvailable")
    )
    return HostMemory(total, available)


def _reclaimable(group: Path) -> int:
    for line in (group / "memory.stat").read_text().splitlines():
        name, _, value = line.partition(" ")
        if name == "inactive_file":
            return int(value)
    return 0
