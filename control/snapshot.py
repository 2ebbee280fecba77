"""The frozen view on which one turn of the reconciler decides: everything known of one run, and of
the nodes it may use.

Loaded by `control.db.load` in one short read; read by `control.decide`. Values only; instants are
aware UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from trainmaster.orders import Drill
from trainmaster.plan import Plan
from trainmaster.rule import Rule
from trainmaster.spec import RunSpec
from trainmaster.storage import MEMORY_SCHEME
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
class Reach:
    """What a node saw of a neighbour on its own (`trainmaster.wire.Reach`), and when it said so."""

    witness: str
    node: str
    at: datetime
    answers: bool
    refused: bool = False
    failures: int = 0
    ever: bool = False
    stored: bool = False


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
        ended_by: what ended it before its time: kind, rank, node (`control.endings.Ending`).
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


@dataclass(frozen=True, slots=True)
class Node:
    """A node. `taken` are the slots held by any run, this one included; `held_here` those held by
    this run; `sync_interval_s` is how often it is asked to be heard; `profile` what it says of its
    devices and links.
    """

    id: str
    slots: int
    last_seen_at: datetime
    boot: str
    address: str
    labels: Mapping[str, str] = field(default_factory=dict)
    cordoned: bool = False
    taken: frozenset[int] = frozenset()
    held_here: frozenset[int] = frozenset()
    sync_interval_s: float = 1.0
    profile: Mapping[str, Any] = field(default_factory=dict)


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


@dataclass(frozen=True, slots=True)
class Request:
    """What a person asked and no turn has answered for good yet: kinds pause, resume, stop,
    checkpoint, restore, amend, drill.

    Attributes:
        state: pending (no turn has seen it), accepted (under way). Final states are applied and
            refused.
        generation: the generation that carries it out, once accepted.
        order_seq: the order that carries it out, if one does.
    """

    id: int
    kind: str
    args: Mapping[str, Any]
    actor: str
    why: str
    state: str
    created_at: datetime
    generation: int | None = None
    order_seq: int | None = None


@dataclass(frozen=True, slots=True)
class OrderStatus:
    """An order of the current generation and how far it has come: sent, received, applied, refused.
    `sent_at`: when it was given.
    """

    seq: int
    kind: str
    args: Mapping[str, Any]
    state: str
    step: int | None = None
    because: str = ""
    request: int | None = None
    sent_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One run-level value of a metric on the surviving lineage; value is None where it was not
    measured.
    """

    generation: int
    step: int
    at: datetime
    value: float | None


@dataclass(frozen=True, slots=True)
class Alert:
    """The newest alert of a rule and a scope."""

    id: int
    rule: str
    scope: str
    state: str
    since: datetime
    first_bad_step: int | None
    value: float | None
    threshold: float | None
    severity: str
    incident: str | None
    generation: int


@dataclass(frozen=True, slots=True)
class Incident:
    """An incident that is not closed.

    Attributes:
        state: open, verifying (an action must prove itself), waiting (for a person).
        actions: those taken so far, each a mapping with at least `action` and `at`.
        verification: what the action that is on probation is measured against, and how far it has
            come.
        proposed: what a rule in `ask` mode would do, while it waits for an answer: `action` (as in
            a rule file), `rule`, `scope`, `because`, `generation`, `first_bad_step`,
            `last_bad_step`, `severity`, `at`, `answer_by`, and `then`, what happens without one.
    """

    id: str
    opened_at: datetime
    state: str
    rule: str
    rung: int
    first_bad_step: int
    last_bad_step: int
    actions: tuple[Mapping[str, Any], ...] = ()
    verification: Mapping[str, Any] = field(default_factory=dict)
    proposed: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Silence:
    """A rule that is to be quiet now; None: every rule."""

    id: int
    rule: str | None
    ends_at: datetime


@dataclass(frozen=True, slots=True)
class DrillStatus:
    """A drill of this run: where it was sent, and the (generation, step, batch) at which it has
    fired so far.
    """

    drill: Drill
    generation: int
    fired: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """Everything one turn may look at.

    Attributes:
        windows: metric -> samples on the surviving lineage, ascending by step, at most the newest
            `WINDOW_STEPS` steps.
        rank_windows: metric -> rank -> samples of the newest attempt, for rules that look at ranks;
            up to the newest step that each rank has told.
        attempts: all generations, ascending.
        checkpoints: all that are not retired.
        describing: whether a `describe` chore for this run's workload is not done yet.
        control_up_since: when this control plane began to receive syncs; a node's lease does not
            run while none was up.
        num_incidents: how many this run has had, closed ones included.
        reaches: what nodes lately saw of nodes of this run.
        acted_at: rule -> when it last acted on this run, closed incidents included.
        silences: those that hold for this run now.
    """

    run: Run
    attempts: tuple[Attempt, ...] = ()
    ranks: tuple[Rank, ...] = ()
    nodes: tuple[Node, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    requests: tuple[Request, ...] = ()
    orders: tuple[OrderStatus, ...] = ()
    rules: tuple[Rule, ...] = ()
    alerts: tuple[Alert, ...] = ()
    incidents: tuple[Incident, ...] = ()
    drills: tuple[DrillStatus, ...] = ()
    windows: Mapping[str, tuple[Sample, ...]] = field(default_factory=dict)
    rank_windows: Mapping[str, Mapping[int, tuple[Sample, ...]]] = field(default_factory=dict)
    describe_problems: tuple[str, ...] = ()
    queued_before: int = 0
    describing: bool = False
    control_up_since: datetime | None = None
    num_incidents: int = 0
    acted_at: Mapping[str, datetime] = field(default_factory=dict)
    reaches: tuple[Reach, ...] = ()
    silences: tuple[Silence, ...] = ()
    _by_name: Mapping[str, Node] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", {node.id: node for node in self.nodes})

    def node(self, name: str) -> Node | None:
        """Return one of the nodes; None if it has not been heard of lately."""
        return self._by_name.get(name)

    def is_silenced(self, rule: str) -> bool:
        """Return whether `rule` may neither act nor ask now."""
        return any(silence.rule in {None, rule} for silence in self.silences)

    @property
    def attempt(self) -> Attempt | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None


WINDOW_STEPS = 512
