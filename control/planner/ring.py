"""The best order of a ring all-reduce: the directed cycle whose slowest link is fastest.

A ring over n nodes takes 2(n - 1) hops, each as long as its slowest link needs, so a cycle is
judged by its largest latency and its smallest bandwidth; which of two is better depends on what is
sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import permutations
from typing import NamedTuple

import numpy as np

from control.planner.scenario import Floats, Ints

EXACT_NODES = 8
_STEPS = 1_500
"""How many extensions of a path are tried in a larger ring before a threshold is given up."""

_MOST_THRESHOLDS = 8
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
    nodes = [kind for kind, count in group for _ in range(count)]
    if len(nodes) <= EXACT_NODES:
        return _all_cycles(bw, lat, nodes)
    kinds = [kind for kind, count in group if count]
    counts = [count for _, count in group if count]
    links_bw, links_lat = bw[np.ix_(kinds, kinds)], lat[np.ix_(kinds, kinds)]
    used = ~np.eye(len(kinds), dtype=bool) | np.diag([count > 1 for count in counts])
    latencies = _thresholds(links_lat[used & (links_bw > 0)])
    bandwidths = _thresholds(links_bw[used & (links_bw > 0)])
    found: list[Ring] = []
    for a in latencies:
        # The widest links that still make a cycle, by bisection.
        low = sum(each <= found[-1].bw for each in bandwidths) if found else 0
        high, best = len(bandwidths), None
        while low < high:
            middle = (low + high) // 2
            cycle = _cycle((links_bw >= bandwidths[middle]) & (links_lat <= a), counts)
            if cycle is None:
                high = middle
            else:
                low, best = middle + 1, cycle
        if best is not None:
            found.append(_ring(links_bw, links_lat, kinds, best))
    return tuple(found)


def slowest(bw: Floats, lat: Floats, group: Sequence[tuple[int, int]]) -> tuple[Ring, ...]:
    """Return a ring as slow as the slowest links among so many nodes of each kind, which is what a
    ring takes at most whose order nobody chooses; none where a link is missing.
    """
    kinds = [kind for kind, count in group if count]
    counts = [count for _, count in group if count]
    if sum(counts) < 2:
        return (Ring(0.0, np.inf, tuple(kinds)),)
    used = ~np.eye(len(kinds), dtype=bool) | np.diag([count > 1 for count in counts])
    links = np.ix_(kinds, kinds)
    least = float(bw[links][used].min())
    if least <= 0:
        return ()
    around = tuple(kind for kind, count in zip(kinds, counts, strict=True) for _ in range(count))
    return (Ring(float(lat[links][used].max()), least, around),)


def _all_cycles(bw: Floats, lat: Floats, nodes: Sequence[int]) -> tuple[Ring, ...]:
    """Return the best of all cycles, each tried."""
    if len(nodes) == 1:
        return (Ring(0.0, np.inf, tuple(nodes)),)
    cycles = np.array(nodes)[_orders(len(nodes))]
    onward = np.roll(cycles, -1, axis=1)
    widest, longest = bw[cycles, onward].min(axis=1), lat[cycles, onward].max(axis=1)
    found: list[Ring] = []
    for row in np.lexsort((-widest, longest)):
        if widest[row] > (found[-1].bw if found else 0.0):
            cycle = tuple(int(each) for each in cycles[row])
            found.append(Ring(float(longest[row]), float(widest[row]), cycle))
    return tuple(found)


@lru_cache(maxsize=EXACT_NODES + 1)
def _orders(size: int) -> Ints:
    """Return each order of so many positions that begins with the first."""
    return np.array([(0, *rest) for rest in permutations(range(1, size))], dtype=np.int64)


def _thresholds(values: Floats) -> list[float]:
    distinct = np.unique(values)
    if len(distinct) > _MOST_THRESHOLDS:
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

    Depth first, for a limited number of steps. Nodes of one kind that reach each other stay
    together: one stop instead of many.
    """
    inside = [bool(allowed[kind, kind]) for kind in range(len(counts))]
    stops = [1 if inside[kind] else count for kind, count in enumerate(counts)]
    short = _path(allowed, stops)
    if short is None:
        return None
    return [kind for kind in short for _ in range(counts[kind] if inside[kind] else 1)]


def _path(allowed: Allowed, counts: Sequence[int]) -> list[int] | None:
    total = sum(counts)
    left = list(counts)
    if total > 1 and not (allowed.any(axis=0).all() and allowed.any(axis=1).all()):
        return None
    start = min(range(len(counts)), key=lambda kind: int(allowed[kind].sum()))
    left[start] -= 1
    path = [start]
    if total == 1:
        return path
    ways = [np.flatnonzero(allowed[kind]).tolist() for kind in range(len(counts))]
    ways_to = [np.flatnonzero(allowed[:, kind]).tolist() for kind in range(len(counts))]
    ways_on = [sum(left[each] > 0 for each in ways[kind]) for kind in range(len(counts))]

    def options() -> list[int]:
        here = [kind for kind in ways[path[-1]] if left[kind]]
        # The last is tried first: those with the fewest ways on.
        return sorted(here, key=lambda kind: -ways_on[kind])

    open_options = [options()]
    for _ in range(_STEPS + total):
        if len(path) == total and allowed[path[-1], start]:
            return path
        if open_options[-1]:
            kind = open_options[-1].pop()
            path.append(kind)
            left[kind] -= 1
            if not left[kind]:
                for each in ways_to[kind]:
                    ways_on[each] -= 1
            open_options.append(options())
        else:
            open_options.pop()
            kind = path.pop()
            if not left[kind]:
                for each in ways_to[kind]:
                    ways_on[each] += 1
            left[kind] += 1
            if not open_options:
                return None
    return None
