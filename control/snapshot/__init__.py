"""The frozen view on which one turn of the reconciler decides: everything known of one run, and of
the nodes it may use.

Loaded by `control.db.load` in one short read; read by `control.decide`. Values only; instants are
aware UTC.
"""

from __future__ import annotations

from control.snapshot.asked import DrillStatus, OrderStatus, Request
from control.snapshot.checkpoints import Checkpoint, Copy
from control.snapshot.judged import Alert, Incident, Sample, Silence
from control.snapshot.nodes import Node, Reach
from control.snapshot.ranks import Pulse, Rank, Stacks
from control.snapshot.runs import Attempt, LrWindow, Range, Run
from control.snapshot.whole import WINDOW_STEPS, RunSnapshot

__all__ = [
    "WINDOW_STEPS",
    "Alert",
    "Attempt",
    "Checkpoint",
    "Copy",
    "DrillStatus",
    "Incident",
    "LrWindow",
    "Node",
    "OrderStatus",
    "Pulse",
    "Range",
    "Rank",
    "Reach",
    "Request",
    "Run",
    "RunSnapshot",
    "Sample",
    "Silence",
    "Stacks",
]
