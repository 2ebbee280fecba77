"""Memory that outlives ranks: one folder per run, in a file system that lives in memory.

Ranks keep their newest state there (`worker.checkpoint.memory`). This agent makes the folders and
removes them: at its start and end all of them; one when its run has not been assigned for a while;
and, when the node runs out of memory, those of runs that have no ranks here.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path

from trainmaster.home import Home
from worker import host_memory
from worker.checkpoint.kept import drop
from worker.host_memory import HostMemory

KEEP_S = 600.0
"""For so long a run that is not assigned here keeps its folder: another attempt may follow."""

log = logging.getLogger(__name__)


def root_below(base: Path | None, home: Home, node: str) -> Path | None:
    """Return where the agent of `node` keeps its folders: its own, whatever other agents and other
    users there are on this machine. None where `base` is no folder.
    """
    if base is None or not base.is_dir():
        return None
    of_home = hashlib.sha256(str(home.node(node)).encode()).hexdigest()[:12]
    return base / f"trainmaster-{os.getuid()}-{of_home}"


class Memory:
    """The folders of one agent.

    Args:
        root: the folder around them; None where there is no such memory.
        tell: takes an event's kind and data for the journal.
    """

    def __init__(
        self,
        root: Path | None,
        *,
        tell: Callable[[str, dict[str, object]], None],
        read: Callable[[], HostMemory] = host_memory.read,
    ) -> None:
        self._root = root
        self._tell = tell
        self._read = read
        self._idle_since: dict[str, float | None] = {}

    def clear(self) -> None:
        """Remove everything: what an earlier life left, or what this one did."""
        if self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)
        self._idle_since.clear()

    def folder(self, run: str) -> Path | None:
        """Return the folder of a run, made if it was not there; None where there can be none."""
        if self._root is None:
            return None
        folder = self._root / run
        try:
            self._root.mkdir(mode=0o700, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            log.warning("%s cannot be made, nothing is kept in memory: %s", folder, error)
            return None
        self._idle_since[run] = None
        return folder

    def sweep(self, busy: Collection[str], now: float) -> None:
        """Remove the folders that are no longer worth their memory.

        Args:
            busy: the runs that are assigned here or have ranks here.
            now: monotonic seconds.
        """
        for run in busy:
            if run in self._idle_since:
                self._idle_since[run] = None
        for run, since in list(self._idle(busy)):
            if since is None:
                self._idle_since[run] = now
            elif now - since >= KEEP_S:
                self._remove(run, f"the run has had no attempt here for {KEEP_S:.0f} s")
        if next(self._idle(busy), None) is None:
            return
        memory = self._read()
        if not memory.bears(0):
            free = f"{memory.available >> 20} MiB of {memory.total >> 20} are free"
            for run, _ in list(self._idle(busy)):
                self._remove(run, f"the node runs out of memory: {free}")

    def _idle(self, busy: Collection[str]) -> Iterator[tuple[str, float | None]]:
        return ((run, since) for run, since in self._idle_since.items() if run not in busy)

    def _remove(self, run: str, because: str) -> None:
        assert self._root is not None, "it was made"
        folder = self._root / run
        for generation, step in drop(folder):
            data = {"run": run, "generation": generation, "step": step, "because": because}
            self._tell("state_dropped", data)
        with suppress(OSError):
            shutil.rmtree(folder)
        del self._idle_since[run]
