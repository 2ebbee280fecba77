"""Ranks of an attempt, and what was seen of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Pulse:
    """Where a rank has stood still for a while, as its agent saw it (`trainmaster.wire.Pulse`)."""

    section: str
    activity: str
    step: int
    still_s: float
    idle_s: float
    frozen: bool = False


@dataclass(frozen=True, slots=True)
class Stacks:
    """A call for the stacks of ranks of an attempt.

    Attributes:
        ranks: None means all.
        told: the ranks of which an answer is stored.
    """

    id: int
    asked_at: datetime
    ranks: tuple[int, ...] | None = None
    incident: str | None = None
    told: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank of the current generation, as facts tell it.

    Attributes:
        state: assigned, started, ready, exited.
        failure: what the rank said of its own end: data of its event rank_failed or restore_failed.
        finished: data of its event rank_finished.
        exited_at: when the agent saw it end.
        stopped: its agent ended it on purpose, so that its end is no cause of anything.
        boot: the boot of its node's agent that reported it started; another boot of that node means
            that it is dead.
        pulse: where it stands still; None while it comes on, or nothing is known.
    """

    rank: int
    node: str
    slot: int
    state: str
    pid: int | None = None
    last_step: int | None = None
    last_seen_at: datetime | None = None
    exit_code: int | None = None
    signal: int | None = None
    exited_at: datetime | None = None
    stopped: bool = False
    failure: Mapping[str, Any] | None = None
    finished: Mapping[str, Any] | None = None
    boot: str | None = None
    pulse: Pulse | None = None
