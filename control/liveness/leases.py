"""Who is alive: nodes by their lease, ranks by facts and a second witness. Lost contact is not
death. Pure.

A lease runs only while a control plane was there to hear: after a restart of control, every node
has a whole one again.

What is believed of a rank (`belief`), by what is known of its node and of itself:

| it exited | its node's agent was started anew | its node is lost | belief |
|---|---|---|---|
| yes | - | - | dead |
| no | yes | - | dead: an agent kills the leftovers of its earlier life before it speaks |
| no | no | yes | unreachable |
| no | no | no | alive |

The other witness is a broken collective: peers of a dead rank end with exit 75, and that ends the
attempt by itself.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from control.snapshot import Node, Rank, RunSnapshot

LATE_AFTER_S = 3.0
"""Three syncs of about a second each."""

LEASE_S = 10.0
"""How long a node is believed after its last sync."""

SYNCS_PER_S = 1250
"""How many syncs a control plane asks for in a second. In a fleet that would send more, nodes
without ranks come back less often, and are waited for as much longer.
"""

LONGEST_INTERVAL_S = 5.0

NodeState = Literal["present", "late", "lost"]
Belief = Literal["alive", "unreachable", "dead"]


def sync_interval_s(num_nodes: int) -> float:
    """Return how often a node without ranks syncs in a fleet of `num_nodes`; one with ranks syncs
    each second.
    """
    return min(max(1.0, num_nodes / SYNCS_PER_S), LONGEST_INTERVAL_S)


def silent_s(node: Node, *, now: datetime, control_up_since: datetime | None = None) -> float:
    """Return for how many seconds `node` could have been heard and was not."""
    heard_at = node.last_seen_at
    if control_up_since is not None:
        heard_at = max(heard_at, control_up_since)
    return max(0.0, (now - heard_at).total_seconds())


def node_state(node: Node, *, now: datetime, control_up_since: datetime | None = None) -> NodeState:
    """Return whether `node` is present, late or lost."""
    silence_s = silent_s(node, now=now, control_up_since=control_up_since)
    if silence_s >= LEASE_S + _longer_s(node):
        return "lost"
    return "late" if silence_s >= LATE_AFTER_S + _longer_s(node) else "present"


def may_take_ranks(node: Node, *, now: datetime) -> bool:
    """Return whether new work may be given to `node`: it has really been heard just now, and is not
    cordoned.
    """
    return not node.cordoned and silent_s(node, now=now) < LATE_AFTER_S + _longer_s(node)


def _longer_s(node: Node) -> float:
    return node.sync_interval_s - 1.0


def started_anew(rank: Rank, snapshot: RunSnapshot) -> bool:
    """Return whether the agent of a started rank's node has begun another life since."""
    if rank.boot is None or rank.state not in {"started", "ready"}:
        return False
    node = snapshot.node(rank.node)
    return node is not None and node.boot != rank.boot


def belief(rank: Rank, snapshot: RunSnapshot, *, now: datetime) -> Belief:
    """Return what is believed of `rank`; the table is in the module's docstring."""
    if rank.state == "exited" or started_anew(rank, snapshot):
        return "dead"
    node = snapshot.node(rank.node)
    if node is None:
        return "unreachable"
    state = node_state(node, now=now, control_up_since=snapshot.control_up_since)
    return "unreachable" if state == "lost" else "alive"


def out_of_contact(snapshot: RunSnapshot, *, now: datetime) -> dict[str, float]:
    """Return the nodes on which ranks are unreachable, and for how many seconds each has been
    silent.
    """
    names = {
        rank.node for rank in snapshot.ranks if belief(rank, snapshot, now=now) == "unreachable"
    }
    return {
        name: LEASE_S
        if (node := snapshot.node(name)) is None
        else silent_s(node, now=now, control_up_since=snapshot.control_up_since)
        for name in sorted(names)
    }
