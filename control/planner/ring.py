"""The best order of a ring all-reduce: the directed cycle whose slowest link is fastest.

A ring over n nodes takes 2(n - 1) hops, each as long as its slowest link needs, so a cycle is
judged by its largest latency and its smallest bandwidth; which of two is better depends on what is
sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from control.planner.scenario import Floats

EXACT_NODES = 8
_STEPS = 4_000
"""How many extensions of a path are tried in a larger ring before a threshold is given up."""

_MOST_THRESHOLDS = 24
"""How many latencies, and how many bandwidths, are told apart in a larger ring."""

Allowed = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


class Ring(NamedTuple):
    """A cycle: its largest latency in s, its smallest bandwidth in bytes/s, and the kinds of nodes
    that it goes through.
    """

    lat: float
    bw: float
    kinds: tuple[int, ...]


def rings(bw: Floats, lat: Floats, group: Sequence[tuple[int, int]]) -> tuple[Ring, ...]:
    """Return the cycles through so many nodes of each kind that no other beats in both latency and
    bandwidth; none where no cycle has a link at every hop.

    Exact up to `EXACT_NODES` nodes.
    """
    kinds = [kind for kind, count in group if count]
    counts = [count for _, count in group if count]
    links_bw, links_lat = bw[np.ix_(kinds, kinds)], lat[np.ix_(kinds, kinds)]
    used = ~np.eye(len(kinds), dtype=bool) | np.diag([count > 1 for count in counts])
    latencies = _thresholds(links_lat[used & (links_bw > 0)], sum(counts))
    bandwidths = _thresholds(links_bw[used & (links_bw > 0)], sum(counts))[::-1]
    found: list[Ring] = []
    for a in latencies:
        best = found[-1].bw if found else 0.0
        for beta in bandwidths:
            if beta <= best:
                break
            cycle = _cycle((links_bw >= beta) & (links_lat <= a), counts)
            if cycle is not None:
                found.append(_ring(links_bw, links_lat, kinds, cycle))
                break
    return tuple(found)


def _thresholds(values: Floats, nodes: int) -> list[float]:
    distinct = np.unique(values)
    if nodes > EXACT_NODES and len(distinct) > _MOST_THRESHOLDS:
        picks = np.linspace(0, len(distinct) - 1, _MOST_THRESHOLDS).round().astype(int)
        distinct = distinct[picks]
    return [float(each) for each in distinct]


def _ring(bw: Floats, lat: Floats, kinds: Sequence[int], cycle: Sequence[int]) -> Ring:
    hops = set(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
    return Ring(
        max(float(lat[hop]) for hop in hops),
        min(float(bw[hop]) for hop in hops),
        tuple(kinds[each] for each in cycle),
    )


def _cycle(allowed: Allowed, counts: Sequence[int]) -> list[int] | None:
    """Return a cycle over allowed links through each kind as often as it counts, or None.

    Depth first; nodes of the same kind are gone through one after another where they can be.
    """
    total = sum(counts)
    inside = [bool(allowed[kind, kind]) for kind in range(len(counts))]
    if total > EXACT_NODES:
        # Nodes of one kind that reach each other stay together: one stop instead of many.
        stops = [1 if inside[kind] else count for kind, count in enumerate(counts)]
    else:
        stops = list(counts)
    short = _path(allowed, stops, None if total <= EXACT_NODES else _STEPS)
    if short is None:
        return None
    if total <= EXACT_NODES:
        return short
    return [kind for kind in short for _ in range(counts[kind] if inside[kind] else 1)]


def _path(allowed: Allowed, counts: Sequence[int], steps: int | None) -> list[int] | None:
    total = sum(counts)
    left = list(counts)
    start = min(range(len(counts)), key=lambda kind: int(allowed[kind].sum()))
    left[start] -= 1
    path = [start]
    ways = [np.flatnonzero(allowed[kind]).tolist() for kind in range(len(counts))]

    def options() -> list[int]:
        here = [kind for kind in ways[path[-1]] if left[kind]]
        # The last is tried first: those with the fewest ways on.
        return sorted(here, key=lambda kind: -sum(left[each] > 0 for each in ways[kind]))

    if total == 1:
        return path
    open_options = [options()]
    tried = 0
    while open_options:
        if len(path) == total and allowed[path[-1], start]:
            return path
        if open_options[-1] and (steps is None or tried < steps):
            tried += 1
            kind = open_options[-1].pop()
            path.append(kind)
            left[kind] -= 1
            open_options.append(options())
        elif steps is not None and tried >= steps:
            return None
        else:
            open_options.pop()
            left[path.pop()] += 1
    return None
