"""Whether nodes still hold what ranks have kept in their memory. Pure.

Each node holds the parts of its own ranks and those of the node before it
(`trainmaster.neighbours`). What is held is only believed here: the ranks that restore it verify it,
and where it is gone after all, the one before it is used, which costs no restart.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from control.liveness.leases import LEASE_S
from control.snapshot import Checkpoint, Node, RunSnapshot
from trainmaster.layout import nodes_of
from trainmaster.neighbours import keepers


def is_held(snapshot: RunSnapshot, checkpoint: Checkpoint) -> bool:
    """Return whether nodes in contact hold all parts of a checkpoint that is kept in memory."""
    for attempt in snapshot.attempts:
        if attempt.generation == checkpoint.generation:
            keeping = keepers(nodes_of(attempt.plan))
            return all(any(_remembers(snapshot, node) for node in nodes) for nodes in keeping)
    return False


def _remembers(snapshot: RunSnapshot, name: str) -> bool:
    """Return whether a node is in contact, and its agent the same that ran the newest attempt: an
    agent begins with empty memory.
    """
    node = snapshot.node(name)
    if node is None or node.last_seen_at < _newest(snapshot.nodes) - timedelta(seconds=LEASE_S):
        return False
    boots = {rank.boot for rank in snapshot.ranks if rank.node == name and rank.boot is not None}
    return boots <= {node.boot}


def _newest(nodes: tuple[Node, ...]) -> datetime:
    return max(node.last_seen_at for node in nodes)
