"""Copies of checkpoints, made behind the run's back. Pure.

A run with `checkpoint.local` writes where that says, which commits; a chore copies to the store
that keeps. Each copy has its own state, and is read when the one before it is bad.
"""

from __future__ import annotations

from collections.abc import Iterator

from control.checkpoints.choice import GOOD
from control.checkpoints.judging import chore
from control.decision import NewChore
from control.snapshot import Checkpoint, RunSnapshot
from control.turn import Turn

_ENDS = frozenset({"retired", "quarantined"})


def copy_next(turn: Turn) -> None:
    """Have one checkpoint copied at a time, the newest first: it is the one that would be missed.

    Its bytes are where the node that wrote them is; while that one is unknown, nobody can.
    """
    if any(copy.busy for each in turn.snapshot.checkpoints for copy in each.copies):
        return
    ends = {change.id for change in turn.checkpoints.values() if change.state in _ENDS}
    waiting = [
        (checkpoint, target, source)
        for checkpoint in turn.snapshot.checkpoints
        if checkpoint.state in GOOD and checkpoint.id not in ends
        for target in checkpoint.copies
        if target.state == "due"
        for source in checkpoint.copies
        if source.state == "stored" and _is_known(turn.snapshot, source.node)
    ]
    if not waiting:
        return
    checkpoint, target, source = max(waiting, key=lambda each: (each[0].step, each[0].generation))
    args = {
        "source": source.location,
        "target": target.location,
        "checkpoint": checkpoint.id,
        "manifest_sha256": checkpoint.manifest_sha256,
    }
    turn.chores.append(NewChore("copy", args, node=source.node))


def _is_known(snapshot: RunSnapshot, node: str | None) -> bool:
    return node is None or snapshot.node(node) is not None


def removals(checkpoint: Checkpoint, snapshot: RunSnapshot) -> Iterator[NewChore]:
    """Yield the chores that remove the bytes of a checkpoint wherever they may lie."""
    usual = chore("retire", checkpoint, snapshot)
    if not checkpoint.copies:
        yield usual
    for copy in checkpoint.copies:
        args = {**usual.args, "location": copy.location}
        yield NewChore("retire", args, node=copy.node)
