"""Others, driven by the same script: each module drives one, and imports it only when it is made.

They run in a process of their own (`python -m bench.peers NAME`), which needs nothing of ours but
the modules of `bench` that import the standard library alone: so each peer may be installed in an
environment apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol


class Peer(Protocol):
    """One way to log metrics."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the metrics of a step, as its users are shown to."""

    def log_series(self, metric: str, values: list[float]) -> None:
        """Log one metric of steps 1, 2, ..., in the fastest way there is."""

    def finish(self) -> None:
        """Return when all that was logged is where readers find it."""

    def read(self, metric: str) -> int | None:
        """Read one metric, all points; return how many. None when there is no way to read."""

    def close(self) -> None:
        """End what was started."""


def bytes_below(folder: Path) -> int:
    """Return the size of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
