"""Which nodes make which pipelines, for clusters too large to try everything: a knapsack.

A template is how many nodes of each kind one pipeline has. For a step of T seconds each template
can take some number of micro-batches; the set of templates that takes most of them with the nodes
at hand is a knapsack problem over the counts of kinds, solved exactly by dynamic programming. What
a template takes is judged by the bound of `control.planner.cuts`; simulation comes after.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from control.planner.cuts import cut_costs, fitting, step_lines
from control.planner.fit import Shape
from control.planner.scenario import Floats, Ints, Scenario
from control.planner.setting import Setting

MAX_TEMPLATES = 6000
MAX_STATES = 30_000


@dataclass(frozen=True)
class Templates:
    """Templates with about what a step of n micro-batches takes on each: a + c * n seconds."""

    vectors: Ints
    shapes: tuple[Shape, ...]
    start: Floats
    per: Floats

    def taken(self, step_s: float) -> Ints:
        """Return how many micro-batches each takes within `step_s`."""
        return np.maximum(0, np.floor((step_s - self.start) / self.per)).astype(np.int64)

    def only(self, rows: Ints) -> Templates:
        """Return some of them."""
        return Templates(
            self.vectors[rows],
            tuple(self.shapes[row] for row in rows),
            self.start[rows],
            self.per[rows],
        )


def vectors(counts: Sequence[int], most: int) -> Ints:
    """Return each vector of at most `most` nodes that the counts allow; larger ones are left out
    when there are too many.
    """
    while True:
        number = math.prod(min(count, most) + 1 for count in counts)
        if number <= 40 * MAX_TEMPLATES or most <= 1:
            break
        most -= 1
    ranges = [range(min(count, most) + 1) for count in counts]
    found = np.array(list(product(*ranges)), dtype=np.int64)
    sizes = found.sum(axis=1)
    found, sizes = found[(sizes >= 1) & (sizes <= most)], sizes[(sizes >= 1) & (sizes <= most)]
    while len(found) > MAX_TEMPLATES and sizes.max() > 1:
        keep = sizes < sizes.max()
        found, sizes = found[keep], sizes[keep]
    return np.asarray(found)


def templates(
    scenario: Scenario,
    setting: Setting,
    choices: Ints,
    *,
    step_s: float,
    replicas: int,
    slow_first: bool = True,
) -> Templates:
    """Return the templates that fit into memory, cut for a step of about `step_s` seconds."""
    speed_order = np.argsort(scenario.speed, kind="stable")
    if not slow_first:
        speed_order = speed_order[::-1]
    parts: list[Templates] = []
    sizes = choices.sum(axis=1)
    for size in np.unique(sizes):
        some = choices[sizes == size]
        if size > scenario.layers.count:
            continue
        kinds = np.array([np.repeat(speed_order, row[speed_order]) for row in some])
        part = _of_size(scenario, setting, some, kinds, step_s, replicas)
        if part is not None:
            parts.append(part)
    return joined(parts)


def _of_size(
    scenario: Scenario,
    setting: Setting,
    some: Ints,
    kinds: Ints,
    step_s: float,
    replicas: int,
) -> Templates | None:
    s, b = scenario, setting.micro_batch
    total, size = s.layers.count, kinds.shape[1]
    unit = mean_layer_s(s, setting)
    each = unit[kinds]
    states = s.states_of(setting.zero, offload=setting.offload)
    # As many micro-batches as the step has room for, to know what is in flight.
    n = np.maximum(1, step_s * (1 / each).sum(axis=1) / total).astype(np.int64)
    held = (
        np.minimum(n[:, None], size - np.arange(size)) if setting.schedule == "1f1b" else n[:, None]
    )
    layer_bytes = float(s.kept[setting.recompute][-1]) / total
    once = states.whole * float(s.layers.params.max())
    if setting.recompute != "none":
        once += b * float(s.layers.act.max())
    need = s.layers.params.mean() * states.per_param(replicas) + held * b * layer_bytes
    room = np.floor((s.mem[kinds] - s.fixed - once) / np.maximum(need, 1e-9))
    room = np.minimum(room, total)
    levels = np.unique(np.outer(np.arange(1, total + 1), unit))
    low, high = np.zeros(len(some), dtype=np.int64), np.full(len(some), len(levels) - 1)

    def caps(level: Ints) -> Floats:
        by_time = np.floor(levels[level][:, None] / each * (1 + 1e-12))
        return np.asarray(np.minimum(by_time, room))

    while (low < high).any():
        middle = (low + high) // 2
        counts = caps(middle)
        good = (counts.sum(axis=1) >= total) & (counts >= 1).all(axis=1)
        high = np.where(good, middle, high)
        low = np.where(good, low, np.minimum(middle + 1, high))
    counts = caps(low)
    keep = (counts.sum(axis=1) >= total) & (counts >= 1).all(axis=1)
    if not keep.any():
        return None
    some, kinds, each, n = some[keep], kinds[keep], each[keep], n[keep]
    layers = trimmed(counts[keep].astype(np.int64), each, total)
    costs = cut_costs(s, kinds, layers, setting)
    near = int(np.median(n))
    start, per = step_lines(s, kinds, costs, near, setting, replicas)
    fits = fitting(s, kinds, costs, near, setting, replicas)
    rows = np.flatnonzero(fits & np.isfinite(start))
    shapes = tuple(
        Shape(tuple(kinds[row].tolist()), tuple(layers[row].tolist()), 1) for row in rows
    )
    return Templates(some[rows], shapes, start[rows], per[rows])


def mean_layer_s(scenario: Scenario, setting: Setting) -> Floats:
    """Return what both passes of a layer take on each kind of node, on average."""
    both = scenario.seconds(setting.micro_batch, setting.recompute).both
    return np.asarray(both[:, -1] / scenario.layers.count)


def trimmed(counts: Ints, each: Floats, total: int) -> Ints:
    """Take layers beyond `total` from the slowest stage that has one to spare, one at a time."""
    counts = counts.copy()
    rows = np.arange(len(counts))
    over = counts.sum(axis=1) - total
    while (over > 0).any():
        time = np.where(counts > 1, counts * each, -1.0)
        at = time.argmax(axis=1)
        counts[rows, at] -= over > 0
        over = counts.sum(axis=1) - total
    return counts


def joined(parts: Sequence[Templates]) -> Templates:
    """Return all templates of the parts."""
    if not parts:
        empty = np.zeros(0)
        return Templates(np.zeros((0, 1), dtype=np.int64), (), empty, empty)
    return Templates(
        np.concatenate([part.vectors for part in parts]),
        tuple(shape for part in parts for shape in part.shapes),
        np.concatenate([part.start for part in parts]),
        np.concatenate([part.per for part in parts]),
    )


def best_set(
    choice: Templates, counts: Sequence[int], step_s: float
) -> tuple[int, list[tuple[int, int]]]:
    """Return how many micro-batches the best set of templates takes within `step_s`, and the set as
    (row, how many pipelines).
    """
    taken = choice.taken(step_s)
    states = tuple(count + 1 for count in counts)
    value = np.zeros(states, dtype=np.int64)
    steps: list[tuple[int, int, np.ndarray[tuple[int, ...], np.dtype[np.bool_]]]] = []
    for row, (vector, each) in enumerate(zip(choice.vectors.tolist(), taken.tolist(), strict=True)):
        if not each:
            continue
        most = min(count // need for count, need in zip(counts, vector, strict=True) if need)
        copies = 1
        while most > 0:
            copies = min(copies, most)
            high = tuple(slice(need * copies, None) for need in vector)
            low = tuple(
                slice(0, size - need * copies) for need, size in zip(vector, states, strict=True)
            )
            candidate, best = value[low] + copies * each, value[high]
            # Where the set with these copies is better, by what it leaves.
            steps.append((row, copies, candidate > best))
            np.maximum(best, candidate, out=best)
            most -= copies
            copies *= 2
    at = tuple(counts)
    total = int(value[at])
    used: dict[int, int] = {}
    for row, copies, better in reversed(steps):
        needs = choice.vectors[row].tolist()
        rest = tuple(here - need * copies for here, need in zip(at, needs, strict=True))
        if min(rest) >= 0 and better[rest]:
            used[row] = used.get(row, 0) + copies
            at = rest
    return total, sorted(used.items())


def promising(choice: Templates, scenario: Scenario, step_s: float, most: int) -> Templates:
    """Return the templates that take most micro-batches for their nodes' speed: the best of all,
    and the best of each size.
    """
    taken = choice.taken(step_s)
    worth = taken / (choice.vectors * scenario.speed).sum(axis=1)
    order = np.argsort(-worth, kind="stable")
    sizes = choice.vectors.sum(axis=1)
    picked = list(order[: most * 3 // 4])
    for size in np.unique(sizes):
        picked += [row for row in order if sizes[row] == size][:2]
    for kind in range(choice.vectors.shape[1]):
        alone = choice.vectors[:, kind] == sizes
        picked += [row for row in order if alone[row]][:2]
    rows = np.array(sorted(dict.fromkeys(picked)), dtype=np.int64)
    return choice.only(rows[taken[rows] > 0])
