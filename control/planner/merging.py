"""Nodes that differ a little are planned for as if they were alike: measured figures are never
equal, and plans are sought over kinds. What comes out is then fitted to the real figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from control.planner.fit import Shape
from control.planner.scenario import Floats, LayerTime, NodeKind, Scenario
from control.planner.setting import Draft
from control.planner.templates import MAX_STATES

STEPS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
"""How far apart the logarithms of two figures may be for nodes to count as alike, one after the
other until there are few enough kinds.
"""

MAX_KINDS = 6

MOST_KINDS = 256
"""With more, plans are not fitted to the real figures any more: that takes longer than it gains."""


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
        groups = _alike(scenario, sites, step)
        if few_enough([sum(scenario.counts[kind] for kind in group) for group in groups]):
            break
    for group in groups:
        group.sort(key=lambda kind: (-scenario.speed[kind], kind))
    return _merged(scenario, groups), tuple(map(tuple, groups))


def coarse(scenario: Scenario) -> Scenario:
    """Return the scenario with at most `MOST_KINDS` kinds where that can be had by taking similar
    ones for the worst of them, so that what is predicted is not exceeded; a warning says so.
    """
    if len(scenario.kinds) <= MOST_KINDS:
        return scenario
    sites, step = _sites(scenario), STEPS[0]
    groups = _alike(scenario, sites, step)
    for step in STEPS:
        groups = _alike(scenario, sites, step)
        if len(groups) <= MOST_KINDS:
            break
    told = (
        f"nodes of {len(scenario.kinds)} kinds: those that are within {step:.0%} of each other are "
        "taken for the slowest and smallest of them"
    )
    kinds = [_worst([scenario.kinds[kind] for kind in group]) for group in groups]
    return _grouped(scenario, groups, kinds).replaced(
        bw=_extreme(scenario, scenario.bw, groups, np.min),
        lat=_extreme(scenario, scenario.lat, groups, np.max),
        warnings=(*scenario.warnings, told),
    )


def _alike(scenario: Scenario, sites: Sequence[int], step: float) -> list[list[int]]:
    """Return groups of kinds at one site whose speeds differ by no more than `step`."""
    found: dict[tuple[object, ...], list[int]] = {}
    for kind, figures in enumerate(scenario.kinds):
        speed = round(math.log(float(scenario.speed[kind])) / step)
        memory = round(math.log(figures.mem) / (2 * step))
        found.setdefault((sites[kind], speed, memory, bool(figures.timed)), []).append(kind)
    return list(found.values())


def _sites(scenario: Scenario) -> list[int]:
    """Tell apart what only slow links join: kinds are at one site if fast links join them."""
    bw, size = scenario.bw, len(scenario.kinds)
    if (bw == bw.flat[0]).all():
        return [0] * size
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
    kinds = []
    for group in groups:
        figures = [scenario.kinds[kind] for kind in group]
        by_speed = sorted(group, key=lambda kind: scenario.speed[kind])
        middle = scenario.kinds[by_speed[len(group) // 2]]
        kinds.append(
            replace(
                middle,
                mem=min(each.mem for each in figures),
                host_mem=min(each.host_mem for each in figures),
                t0=float(np.median([each.t0 for each in figures])),
            )
        )
    return _grouped(scenario, groups, kinds).replaced(
        bw=_between(scenario, scenario.bw, groups), lat=_between(scenario, scenario.lat, groups)
    )


def _worst(figures: Sequence[NodeKind]) -> NodeKind:
    """Return a node that nothing takes longer on, and nothing fits into worse, than on these."""
    timed = zip(*(each.timed for each in figures), strict=True)
    return replace(
        figures[0],
        flops=min(each.flops for each in figures),
        mem=min(each.mem for each in figures),
        t0=max(each.t0 for each in figures),
        timed=tuple(LayerTime(*map(max, zip(*layer, strict=True))) for layer in timed),
        host_mem=min(each.host_mem for each in figures),
        memory_bw=min(each.memory_bw for each in figures),
        host_bw=min(each.host_bw for each in figures),
        host_link_bw=min(each.host_link_bw for each in figures),
        mtbf_s=min(each.mtbf_s for each in figures),
        price=max(each.price for each in figures),
        overlap_slowdown=max(each.overlap_slowdown for each in figures),
    )


def _grouped(
    scenario: Scenario, groups: Sequence[Sequence[int]], kinds: Sequence[NodeKind]
) -> Scenario:
    """Return the scenario with a kind for each group; its links are still those of before."""
    kind_of, members = list(scenario.kind_of), []
    for index, group in enumerate(groups):
        nodes = [node for kind in group for node in scenario.members[kind]]
        for node in nodes:
            kind_of[node] = index
        members.append(tuple(nodes))
    return scenario.replaced(
        kinds=tuple(kinds),
        kind_of=tuple(kind_of),
        members=tuple(members),
    )


def _extreme(
    scenario: Scenario,
    links: Floats,
    groups: Sequence[Sequence[int]],
    worst: Callable[[Floats], float],
) -> Floats:
    """Return the worst link from one group to another."""
    size = len(groups)
    if (links == links.flat[0]).all():
        return np.full((size, size), links.flat[0])
    # From a node to itself there is no link to count, where it is the only one of its kind.
    real = ~np.diag([count == 1 for count in scenario.counts])
    found = np.zeros((size, size))
    for row, sources in enumerate(groups):
        for column, targets in enumerate(groups):
            block = np.ix_(sources, targets)
            if real[block].any():
                found[row, column] = worst(links[block][real[block]])
    return found


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
