"""A run and its attempts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from control.snapshot.ranks import Stacks
from trainmaster.plan import Plan
from trainmaster.spec import RunSpec
from trainmaster.wire import WorkloadInfo

Range = tuple[int, int]
LrWindow = tuple[int, int, float]


@dataclass(frozen=True, slots=True)
class Run:
    """The run's own row. `version` guards every change; `state` and `desired` are words of
    `control.lifecycle`. The next generation gets a number of at least `generation_floor`.
    """

    id: str
    version: int
    state: str
    desired: str
    generation: int
    spec: RunSpec
    workload: WorkloadInfo | None
    checkpoint_root: str
    created_at: datetime
    started_at: datetime | None = None
    because: str = ""
    code: str | None = None
    generation_floor: int = 0

    @property
    def next_generation(self) -> int:
        """The number of the next attempt."""
        return max(self.generation + 1, self.generation_floor)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One plan under one generation.

    Attributes:
        cause: why it was made, in words; `cause_kind` is start, import, restart, rollback, restore,
            resume, amend or fallback.
        skip: all batch ranges nobody consumes, the parents' included; `own_skip` what this attempt
            added.
        store: address of its TCPStore, once a node told it.
        ready_at: when all its ranks had restored and met.
        last_step: newest step of which a sample is stored; None before the first.
        last_committed_step: newest step at which it committed a checkpoint, retired ones included;
            None before the first.
        because: why it ended, in words (`AttemptEnd.because`); empty while it lives.
        stacks: the calls for stacks of its ranks so far.
        ended_by: what ended it before its time: kind, rank, node (`recovery.endings.Ending`).
        checkpoint_every: steps between its checkpoints, as they were last.
    """

    generation: int
    parent_generation: int | None
    state: str
    cause: str
    cause_kind: str
    plan: Plan
    started_at: datetime
    ended_at: datetime | None = None
    resumed_from_step: int = 0
    resumed_from_checkpoint: str | None = None
    skip: tuple[Range, ...] = ()
    own_skip: tuple[Range, ...] = ()
    lr_windows: tuple[LrWindow, ...] = ()
    lr_factor: float | None = None
    store: str | None = None
    ready_at: datetime | None = None
    first_step: int | None = None
    last_step: int | None = None
    incident: str | None = None
    last_committed_step: int | None = None
    because: str = ""
    stacks: tuple[Stacks, ...] = ()
    ended_by: Mapping[str, Any] | None = None
    checkpoint_every: int | None = None
