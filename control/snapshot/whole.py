"""The whole of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from control.snapshot.asked import DrillStatus, OrderStatus, Request
from control.snapshot.checkpoints import Checkpoint
from control.snapshot.judged import Alert, Incident, Sample, Silence
from control.snapshot.nodes import Node, Reach
from control.snapshot.ranks import Rank
from control.snapshot.runs import Attempt, Run
from trainmaster.rule import Rule

WINDOW_STEPS = 512
"""The newest steps of the surviving lineage that a window holds at most."""


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
