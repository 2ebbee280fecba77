"""Checkpoints as SQL judges them, and where they are."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from trainmaster.storage import MEMORY_SCHEME


@dataclass(frozen=True, slots=True)
class Copy:
    """A checkpoint in one of its stores.

    Attributes:
        tier: local (where ranks write) or store (where it is kept).
        state: due (to be made), stored, bad (a reading found it wrong) or retired.
        node: where a local one lies; None for any.
        busy: whether a chore is making it, or has just failed to and is tried again later.
    """

    tier: str
    location: str
    state: str
    node: str | None = None
    busy: bool = False


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint as SQL judges it.

    Attributes:
        verified_at: when its bytes were last read back and found right.
        scrubbing: whether a node is reading it again, at leisure.
        verifying: whether a `verify` chore for it is not done yet.
        problem: what its last reading found wrong (file, expected, seen), as a sentence; None when
            nothing.
        copies: in which stores it is; empty where it is written to the one that keeps it.
    """

    id: str
    generation: int
    step: int
    state: str
    location: str
    manifest_sha256: str
    created_at: datetime
    abandoned: bool = False
    pinned: bool = False
    verified_at: datetime | None = None
    trusted_at: datetime | None = None
    loss: float | None = None
    verifying: bool = False
    problem: str | None = None
    scrubbing: bool = False
    copies: tuple[Copy, ...] = ()

    @property
    def in_memory(self) -> bool:
        """Whether it is kept in the memory of nodes alone."""
        return self.location.startswith(MEMORY_SCHEME)
