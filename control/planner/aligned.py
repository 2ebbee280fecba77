"""Templates whose cuts meet: pipelines of different nodes that share some cuts.

Between two shared cuts, sums of gradients wait for each other across all replicas, because stages
overlap; over a shared cut they do not. So pipelines are put together from chains of nodes that each
hold one of `parts` equal parts of the model, and the knapsack chooses among those.
"""

from __future__ import annotations

import numpy as np

from control.planner.cuts import cut_costs, fitting, step_lines
from control.planner.fit import Shape
from control.planner.scenario import Floats, Ints, Scenario
from control.planner.setting import Setting
from control.planner.templates import Templates, joined, mean_layer_s, trimmed, vectors

LONGEST_CHAIN = 8
LONGEST = 24
EVEN = 1.04
"""Chains of one pipeline differ by at most this factor in speed: the slower sets the pace."""


def aligned_templates(
    scenario: Scenario,
    setting: Setting,
    counts: tuple[int, ...],
    parts: int,
    *,
    step_s: float,
    replicas: int,
    kept: int,
) -> Templates:
    """Return the templates of one or two kinds of chains that waste least, of those that fit into
    memory.
    """
    s = scenario
    share = s.layers.count // parts
    chains = vectors(counts, min(LONGEST_CHAIN, share, s.max_stages))
    chains, pace, layers = _chains(s, setting, chains, share)
    if not len(pace):
        return joined([])
    speed = (chains * s.speed).sum(axis=1)
    rows = _pipelines(chains, pace, speed, parts, counts, min(LONGEST, s.max_stages), kept)
    by_size: dict[int, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {}
    for one, other, times in rows:
        order = [one] * times + [other] * (parts - times)
        # Chains of slow nodes first: their parameters are summed last.
        order.sort(key=lambda row: (speed[row] / chains[row].sum(), row))
        kinds = [kind for row in order for kind in layers[row][0]]
        counted = [count for row in order for count in layers[row][1]]
        by_size.setdefault(len(kinds), []).append((tuple(kinds), tuple(counted)))
    return joined(
        [_judged(s, setting, shapes, step_s, replicas) for _, shapes in sorted(by_size.items())]
    )


def _chains(
    s: Scenario, setting: Setting, chains: Ints, share: int
) -> tuple[Ints, Floats, list[tuple[tuple[int, ...], tuple[int, ...]]]]:
    """Return chains that can hold `share` layers, the seconds of their slowest stage, and their
    stages as kinds and layers.
    """
    unit = mean_layer_s(s, setting)
    levels = np.unique(np.outer(np.arange(1, share + 1), unit))
    caps = np.floor(levels[:, None] / unit * (1 + 1e-12))
    holds = chains @ caps.T >= share
    first = np.where(holds.any(axis=1), holds.argmax(axis=1), -1)
    good = first >= 0
    # Each stage needs a layer: the slowest kind of the chain must manage one.
    good &= ((caps[first] >= 1) | (chains == 0)).all(axis=1)
    chains, first = chains[good], first[good]
    shapes = []
    order = np.argsort(s.speed, kind="stable")
    paces = []
    for chain, level in zip(chains, first, strict=True):
        kinds = np.repeat(order, chain[order])
        counts = trimmed(caps[level][kinds].astype(np.int64)[None], unit[kinds][None], share)[0]
        shapes.append((tuple(kinds.tolist()), tuple(counts.tolist())))
        paces.append(float((counts * unit[kinds]).max()))
    return chains, np.array(paces), shapes


def _pipelines(
    chains: Ints,
    pace: Floats,
    speed: Floats,
    parts: int,
    counts: tuple[int, ...],
    longest: int,
    kept: int,
) -> list[tuple[int, int, int]]:
    """Return (one chain, another, how many parts the one takes) of the pipelines that waste least
    of their nodes' speed.
    """
    cost = pace * speed
    some = np.argsort(cost, kind="stable")[:160]
    one, other = (each.ravel() for each in np.meshgrid(some, some, indexing="ij"))
    close = (np.maximum(pace[one], pace[other]) <= EVEN * np.minimum(pace[one], pace[other])) & (
        one <= other
    )
    one, other = one[close], other[close]
    found = []
    for times in range(1, parts + 1):
        use = one == other if times == parts else one != other
        a, b = one[use], other[use]
        total = chains[a] * times + chains[b] * (parts - times)
        fits = (total <= np.array(counts)).all(axis=1) & (total.sum(axis=1) <= longest)
        a, b, total = a[fits], b[fits], total[fits]
        waste = np.maximum(pace[a], pace[b]) * (speed[a] * times + speed[b] * (parts - times))
        found += [(float(w), int(x), int(y), times) for w, x, y in zip(waste, a, b, strict=True)]
    found.sort()
    return [(x, y, times) for _, x, y, times in found[:kept]]


def _judged(
    s: Scenario,
    setting: Setting,
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]],
    step_s: float,
    replicas: int,
) -> Templates:
    kinds = np.array([each[0] for each in shapes])
    counts = np.array([each[1] for each in shapes])
    costs = cut_costs(s, kinds, counts, setting)
    slowest = (costs.forward + costs.backward).max(axis=1)
    near = max(1, int(np.median(step_s / slowest)))
    start, per = step_lines(s, kinds, costs, near, setting, replicas)
    good = np.isfinite(start) & fitting(s, kinds, costs, near, setting, replicas)
    rows = np.flatnonzero(good)
    vector = np.array(
        [[(row == kind).sum() for kind in range(len(s.kinds))] for row in kinds[rows]],
        dtype=np.int64,
    ).reshape(len(rows), len(s.kinds))
    return Templates(
        vector,
        tuple(Shape(tuple(kinds[row].tolist()), tuple(counts[row].tolist()), 1) for row in rows),
        start[rows],
        per[rows],
    )
