"""What one turn wants changed: values that `control.db.apply` writes in one transaction, guarded by
the run's version.

A decision with no changes only moves `next_look_at`, which is not guarded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from control.snapshot import Alert, LrWindow, Range
from trainmaster.orders import Drill
from trainmaster.plan import Plan
from trainmaster.spec import RunSpec


@dataclass(frozen=True, slots=True)
class Placement:
    """A rank and the slot it takes."""

    rank: int
    node: str
    slot: int


@dataclass(frozen=True, slots=True)
class NewAttempt:
    """A new generation. The slots of its placements are claimed under a unique constraint; a clash
    rolls the turn back.

    Whatever the older generation left unapplied of its orders ends as refused: superseded.
    Checkpoints of other generations above `resumed_from_step` that are not on the new lineage are
    marked abandoned by an explicit `CheckpointChange`.
    """

    generation: int
    parent_generation: int | None
    cause: str
    cause_kind: str
    plan: Plan
    placements: tuple[Placement, ...]
    checkpoint_every: int
    resumed_from_step: int = 0
    resumed_from_checkpoint: str | None = None
    skip: tuple[Range, ...] = ()
    own_skip: tuple[Range, ...] = ()
    lr_windows: tuple[LrWindow, ...] = ()
    lr_factor: float | None = None
    incident: str | None = None


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """The end of the current generation: its ranks are withdrawn from assignments and its slots are
    free.
    """

    generation: int
    state: str
    because: str
    ended_by: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class NewOrder:
    """An order to the ranks of the current generation; apply gives it the next seq."""

    kind: str
    args: Mapping[str, Any] = field(default_factory=dict)
    request: int | None = None


@dataclass(frozen=True, slots=True)
class RequestChange:
    """How far a person's request has come."""

    id: int
    state: str
    because: str = ""
    generation: int | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True)
class CheckpointChange:
    """A new judgement of a checkpoint; None leaves a field as it is."""

    id: str
    because: str
    state: str | None = None
    abandoned: bool | None = None
    trusted_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class AlertChange:
    """The state of (rule, scope); a new row when no unresolved one exists. `flapping`: it stays
    firing, since its rule fires and heals again and again.
    """

    rule: str
    scope: str
    state: str
    value: float | None
    threshold: float | None
    first_bad_step: int | None
    severity: str
    generation: int
    incident: str | None = None
    flapping: bool = False

    @classmethod
    def ending(cls, alert: Alert, state: str = "resolved") -> AlertChange:
        """Return the end of an alert, with what it saw last."""
        return cls(
            rule=alert.rule,
            scope=alert.scope,
            state=state,
            value=alert.value,
            threshold=alert.threshold,
            first_bad_step=alert.first_bad_step,
            severity=alert.severity,
            generation=alert.generation,
            incident=alert.incident,
        )


@dataclass(frozen=True, slots=True)
class IncidentChange:
    """The whole new content of an incident; inserted when its id is unknown."""

    id: str
    rule: str
    state: str
    rung: int
    first_bad_step: int
    last_bad_step: int
    because: str
    actions: tuple[Mapping[str, Any], ...] = ()
    verification: Mapping[str, Any] = field(default_factory=dict)
    closed_as: str | None = None
    closed: bool = False
    proposed: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class NewStacks:
    """The stacks of ranks of the current generation are wanted; None means all ranks."""

    ranks: tuple[int, ...] | None = None
    incident: str | None = None
    request: int | None = None


@dataclass(frozen=True, slots=True)
class Cordon:
    """A node that is to get no new ranks until a person says otherwise."""

    node: str
    because: str


@dataclass(frozen=True, slots=True)
class NewDrill:
    """A drill for `generation`; `request` is the person's.

    A sticky drill is carried into each later generation under the same id, so (run, generation, id)
    tells drills apart.
    """

    drill: Drill
    request: int | None = None
    generation: int | None = None


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An entry of the run's history. `kind` is past tense; `because` are sentences for a person."""

    kind: str
    because: str
    actor: str = "control"
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewChore:
    """Work for an agent. `node` None lets any present node take it.

    `verify` and `retire` carry {"location", "checkpoint", "manifest_sha256"}, `copy` {"source",
    "target"} instead of the first, `describe` {"workload", "params", "data"}.
    """

    kind: str
    args: Mapping[str, Any]
    node: str | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What should change. None leaves a field as it is.

    Attributes:
        because: when not empty, replaces the run's `because`: why it is in this state, or what it
            waits for.
        code: of a failure; a changed state without one takes an earlier code away.
        spec: the amended spec.
        next_look_at: when the run is due again; at `now` when this turn's change lets the next one
            act at once. New facts and requests make a run due earlier.
    """

    run: str
    expected_version: int
    next_look_at: datetime
    state: str | None = None
    desired: str | None = None
    because: str = ""
    code: str | None = None
    weights_sha256: str | None = None
    spec: RunSpec | None = None
    attempt_end: AttemptEnd | None = None
    new_attempt: NewAttempt | None = None
    orders: tuple[NewOrder, ...] = ()
    requests: tuple[RequestChange, ...] = ()
    checkpoints: tuple[CheckpointChange, ...] = ()
    alerts: tuple[AlertChange, ...] = ()
    incidents: tuple[IncidentChange, ...] = ()
    drills: tuple[NewDrill, ...] = ()
    stacks: tuple[NewStacks, ...] = ()
    cordons: tuple[Cordon, ...] = ()
    chores: tuple[NewChore, ...] = ()
    events: tuple[NewEvent, ...] = ()

    @property
    def changes_anything(self) -> bool:
        """Whether there is anything to write but the next look."""
        return bool(
            self.state
            or self.desired
            or self.because
            or self.spec
            or self.weights_sha256
            or self.attempt_end
            or self.new_attempt
            or self.orders
            or self.requests
            or self.checkpoints
            or self.alerts
            or self.incidents
            or self.drills
            or self.stacks
            or self.cordons
            or self.chores
            or self.events
        )
