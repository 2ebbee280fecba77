"""Nodes that differ a little are planned for as if they were alike: measured figures are never
equal, and plans are sought over kinds. What comes out is then fitted to the real figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from control.planner.cost import Draft
from control.planner.fit import Shape
from control.planner.scenario import Floats, NodeKind, Scenario
from control.planner.templates import MAX_STATES

STEPS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
"""How far apart the logarithms of two figures may be for nodes to count as alike, one after the
other until there are few enough kinds.
"""

MAX_KINDS = 6


def few_enough(counts: Sequence[int]) -> bool:
    """Whether a knapsack over these counts, or over equal islands of them, is possible."""
    number = max(1, sum(counts) // 64)
    small = [count // number for count in counts]
    return len(counts) <= MAX_KINDS and math.prod(each + 1 for each in small) <= MAX_STATES


def merged(scenario: Scenario) -> tuple[Scenario, tuple[tuple[int, ...], ...]] | None:
    """Return the scenario with similar kinds made one, and the real kinds of each of them, fastest
    first; None where there are few kinds already.
    """
    if few_enough(scenario.counts):
        return None
    sites = _sites(scenario)
    groups: list[list[int]] = []
    for step in STEPS:
        found: dict[tuple[int, int, int], list[int]] = {}
        for kind, figures in enumerate(scenario.kinds):
            speed = round(math.log(float(scenario.speed[kind])) / step)
            found.setdefault(
                (sites[kind], speed, round(math.log(figures.mem) / (2 * step))), []
            ).append(kind)
        groups = list(found.values())
        if few_enough([sum(scenario.counts[kind] for kind in group) for group in groups]):
            break
    for group in groups:
        group.sort(key=lambda kind: (-scenario.speed[kind], kind))
    return _merged(scenario, groups), tuple(map(tuple, groups))


def _sites(scenario: Scenario) -> list[int]:
    """Tell apart what only slow links join: kinds are at one site if fast links join them."""
    bw, size = scenario.bw, len(scenario.kinds)
    apart = bw[~np.eye(size, dtype=bool)]
    apart = apart[apart > 0]
    if not len(apart) or apart.max() < 4 * apart.min():
        return [0] * size
    near = np.minimum(bw, bw.T) >= math.sqrt(float(apart.max() * apart.min()))
    site = list(range(size))
    for kind in range(size):
        for other in range(kind):
            if near[kind, other] and site[other] != site[kind]:
                old, new = site[kind], site[other]
                site = [new if each == old else each for each in site]
    return site


def _merged(scenario: Scenario, groups: Sequence[Sequence[int]]) -> Scenario:
    kinds, kind_of, members = [], list(scenario.kind_of), []
    for index, group in enumerate(groups):
        figures = [scenario.kinds[kind] for kind in group]
        middle = sorted(figures, key=lambda each: each.flops)[len(figures) // 2]
        kinds.append(
            NodeKind(
                middle.type,
                middle.flops,
                min(each.mem for each in figures),
                float(np.median([each.t0 for each in figures])),
            )
        )
        nodes = [node for kind in group for node in scenario.members[kind]]
        for node in nodes:
            kind_of[node] = index
        members.append(tuple(nodes))
    return scenario.replaced(
        kinds=tuple(kinds),
        kind_of=tuple(kind_of),
        members=tuple(members),
        bw=_between(scenario, scenario.bw, groups),
        lat=_between(scenario, scenario.lat, groups),
    )


def _between(scenario: Scenario, links: Floats, groups: Sequence[Sequence[int]]) -> Floats:
    """Return the median link from one group to another."""
    size = len(groups)
    found = np.zeros((size, size))
    for row, sources in enumerate(groups):
        for column, targets in enumerate(groups):
            pairs = [
                float(links[i, j])
                for i in sources
                for j in targets
                if i != j or scenario.counts[i] > 1
            ]
            found[row, column] = float(np.median(pairs)) if pairs else 0.0
    return found


def apart(scenario: Scenario, draft: Draft, groups: Sequence[Sequence[int]]) -> list[Shape]:
    """Return the shapes of a draft over merged kinds with real nodes: the fastest of each kind go
    to the pipelines with the largest shares.
    """
    free = [[kind for kind in group for _ in scenario.members[kind]] for group in groups]
    pipes = sorted(draft.pipes, key=lambda pipe: -pipe.micro_batches)
    shapes: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    for pipe in pipes:
        for _ in range(pipe.copies):
            key = (tuple(free[kind].pop(0) for kind in pipe.kinds), pipe.layers)
            shapes[key] = shapes.get(key, 0) + 1
    return [Shape(*key, copies) for key, copies in shapes.items()]
