"""Which rank keeps a copy of which other one's part, so that the end of one node loses nothing.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence


def ranks_by_node(nodes: Sequence[str]) -> dict[str, list[int]]:
    """Return the ranks of each node, nodes in the order of their first rank.

    Args:
        nodes: the node of each rank.
    """
    found: dict[str, list[int]] = {}
    for rank, node in enumerate(nodes):
        found.setdefault(node, []).append(rank)
    return found


def receivers(nodes: Sequence[str]) -> list[int | None]:
    """Return for each rank which one keeps a copy of its part: one on the next node, the last
    node's on the first; None where there is no other node.
    """
    by_node = ranks_by_node(nodes)
    order = list(by_node)
    found: list[int | None] = [None] * len(nodes)
    for number, node in enumerate(order):
        there = by_node[order[(number + 1) % len(order)]]
        for place, rank in enumerate(by_node[node]):
            found[rank] = there[place % len(there)] if len(order) > 1 else None
    return found


def keepers(nodes: Sequence[str]) -> list[frozenset[str]]:
    """Return for each node's parts the nodes that hold them: itself and the next one."""
    order = list(ranks_by_node(nodes))
    return [
        frozenset((node, order[(number + 1) % len(order)])) for number, node in enumerate(order)
    ]
