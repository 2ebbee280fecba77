"""Good cuts and good shares for pipelines whose nodes are given: fast, and not always the best."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from control.planner.cost import Model
from control.planner.cuts import cut_costs, fitting, step_bounds, step_lines
from control.planner.scenario import Floats, Ints, Scenario
from control.planner.setting import Pipe, Setting

_CLIMBS = 60
_SHORT = 16
"""Up to so many stages, layers and stages are moved anywhere at once; beyond, to near places."""


class Shape(NamedTuple):
    """`copies` pipelines whose shares are still open."""

    kinds: tuple[int, ...]
    layers: tuple[int, ...]
    copies: int


class Ladder(NamedTuple):
    """Running sums over layers, from 0: what they take on a kind of node, and what they need."""

    time: list[float]
    params: list[float]
    kept: list[float]


def split(
    model: Model,
    kinds: tuple[int, ...],
    setting: Setting,
    *,
    micro_batches: int,
    replicas: int,
) -> tuple[int, ...] | None:
    """Return layer counts whose slowest stage is as fast as memory allows, or None where the model
    does not fit on these nodes in this order.
    """
    s, total, stages = model.scenario, model.scenario.layers.count, len(kinds)
    if stages > total:
        return None
    ladders = {kind: ladder(model, kind, setting) for kind in set(kinds)}
    states = s.states_of(setting.zero, offload=setting.offload)
    per_param = states.per_param(replicas)
    once = states.whole * float(s.layers.params.max())
    if setting.recompute != "none":
        once += setting.micro_batch * float(s.layers.act.max())
    roofs = []
    for stage, kind in enumerate(kinds):
        held = micro_batches if setting.schedule == "gpipe" else min(micro_batches, stages - stage)
        rungs = ladders[kind]
        need = [p * per_param + held * a for p, a in zip(rungs.params, rungs.kept, strict=True)]
        roofs.append((need, s.kinds[kind].mem - s.fixed - once))

    def filled(limit: float) -> list[int] | None:
        low, counts = 0, []
        for stage, kind in enumerate(kinds):
            time, (need, free) = ladders[kind].time, roofs[stage]
            end = min(
                bisect_right(time, time[low] + limit) - 1,
                bisect_right(need, need[low] + free) - 1,
                total - (stages - 1 - stage),
            )
            if end <= low:
                return None
            counts.append(end - low)
            low = end
        return counts if low == total else None

    high_s = sum(each.time[-1] for each in ladders.values())
    best = filled(high_s * (1 + 1e-9))
    if best is None:
        return None
    # Perfectly even work is the least; a layer more on each stage is always enough, memory aside.
    low_s = 1 / sum(1 / ladders[kind].time[-1] for kind in kinds)
    for _ in range(40):
        if high_s - low_s < 1e-4 * low_s:
            break
        middle = math.sqrt(low_s * high_s)
        counts = filled(middle)
        if counts is None:
            low_s = middle
        else:
            best, high_s = counts, middle
    return tuple(best)


def ladder(model: Model, kind: int, setting: Setting) -> Ladder:
    """Return the ladder of a kind, from one micro-batch's passes."""
    key = (kind, setting.micro_batch, setting.recompute)
    found = model.ladders.get(key)
    if found is None:
        s, b = model.scenario, setting.micro_batch
        time = s.seconds(b, setting.recompute).both[kind]
        kept = b * s.kept[setting.recompute]
        params = s.layers.sums[1]
        found = Ladder((time * (1 + 1e-12)).tolist(), params.tolist(), kept.tolist())
        model.ladders[key] = found
    return found


@lru_cache(maxsize=64)
def _moves(stages: int) -> tuple[Ints, Ints]:
    """Return each way to move one layer from one stage to another, as rows to add, and each way to
    put a stage elsewhere or to swap two, as rows of positions.
    """
    layers, places = [], []
    far = stages if stages <= _SHORT else 3
    for source in range(stages):
        for target in range(max(0, source - far), min(stages, source + far + 1)):
            if source == target:
                continue
            row = np.zeros(stages, dtype=np.int64)
            row[source], row[target] = -1, 1
            layers.append(row)
            moved = [each for each in range(stages) if each != source]
            moved.insert(target, source)
            places.append(moved)
            if source < target - 1:
                swapped = list(range(stages))
                swapped[source], swapped[target] = target, source
                places.append(swapped)
    shape = (-1, stages)
    return (
        np.array(layers, dtype=np.int64).reshape(shape),
        np.array(places, dtype=np.int64).reshape(shape),
    )


def climb(
    scenario: Scenario,
    kinds: tuple[int, ...],
    layers: tuple[int, ...],
    setting: Setting,
    *,
    micro_batches: int,
    replicas: int,
    reorder: bool = True,
) -> tuple[tuple[int, ...], tuple[int, ...], float]:
    """Return kinds and layers of stages improved as long as the bound falls, by moving single
    layers and, with `reorder`, whole stages; and the bound, infinite where they do not fit.
    """
    order, counts = np.array(kinds), np.array(layers)
    best = math.inf
    add, places = _moves(len(kinds))
    reorder = reorder and len(set(kinds)) > 1
    for _ in range(_CLIMBS):
        tried = np.concatenate([counts[None], counts + add])
        tried = tried[(tried >= 1).all(axis=1)]
        orders = np.broadcast_to(order, tried.shape)
        if reorder:
            moved = places[(order[places] != order).any(axis=1)]
            tried = np.concatenate([tried, counts[moved]])
            orders = np.concatenate([orders, order[moved]])
        bounds = _judged(scenario, orders, tried, setting, micro_batches, replicas)
        row = int(bounds.argmin())
        if not bounds[row] < best * (1 - 1e-9):
            break
        best, counts, order = float(bounds[row]), tried[row], orders[row]
    return tuple(order.tolist()), tuple(counts.tolist()), best


def _judged(
    scenario: Scenario,
    orders: Ints,
    counts: Ints,
    setting: Setting,
    micro_batches: int,
    replicas: int,
) -> Floats:
    costs = cut_costs(scenario, orders, counts, setting)
    bounds = step_bounds(scenario, orders, costs, micro_batches, setting, replicas)
    fits = fitting(scenario, orders, costs, micro_batches, setting, replicas)
    return np.where(fits, bounds, np.inf)


def line(
    model: Model, shape: Shape, setting: Setting, *, near: int, replicas: int
) -> tuple[float, float]:
    """Return (a, c) such that a step takes about a + c * n with n micro-batches on the shape, near
    `near` of them.
    """
    near = round(1.15 ** round(math.log(near, 1.15)))  # so that few different ones are computed
    key = (*shape[:2], setting.memory_key, near, replicas)
    found = model.lines.get(key)
    if found is None:
        s = model.scenario
        costs = cut_costs(s, shape.kinds, np.array([shape.layers]), setting)
        start, per = step_lines(s, shape.kinds, costs, near, setting, replicas)
        found = model.lines[key] = (float(start[0]), float(per[0]))
    return found


def share(
    model: Model, setting: Setting, shapes: Sequence[Shape], micro_batches: int
) -> tuple[Pipe, ...] | None:
    """Return the shapes with shares that add up to `micro_batches`, such that all end about
    together; None where there are more pipelines than micro-batches.

    Shapes whose pipelines get shares that differ by one are told apart.
    """
    s = model.scenario
    replicas = sum(shape.copies for shape in shapes)
    if replicas > micro_batches:
        return None
    near = max(1, micro_batches // replicas)
    if setting.zero == 3 and replicas > 1:
        return _equal(shapes, micro_batches, replicas)
    lines = [line(model, shape, setting, near=near, replicas=replicas) for shape in shapes]
    if any(not math.isfinite(a) for a, _ in lines):
        return None
    least = [
        len(shape.kinds) if s.runtime and setting.schedule == "1f1b" else 1 for shape in shapes
    ]
    if sum(low * shape.copies for low, shape in zip(least, shapes, strict=True)) > micro_batches:
        return None

    def taken(step_s: float) -> list[int]:
        return [
            max(low, min(micro_batches, math.floor((step_s - a) / per)))
            for (a, per), low in zip(lines, least, strict=True)
        ]

    def total(shares: Sequence[int]) -> int:
        return sum(n * shape.copies for n, shape in zip(shares, shapes, strict=True))

    low_s, high_s = 0.0, max(a + per * micro_batches for a, per in lines) + 1.0
    for _ in range(60):
        middle = (low_s + high_s) / 2
        if total(taken(middle)) <= micro_batches:
            low_s = middle
        else:
            high_s = middle
    shares = taken(low_s)
    return _dealt(shapes, shares, lines, micro_batches - total(shares))


def _equal(shapes: Sequence[Shape], micro_batches: int, replicas: int) -> tuple[Pipe, ...] | None:
    """Return the shapes with equal shares, where they are cut alike and these come out."""
    share, left = divmod(micro_batches, replicas)
    if left or len({shape.layers for shape in shapes}) > 1:
        return None
    return tuple(Pipe(shape.kinds, shape.layers, share, shape.copies) for shape in shapes)


def _dealt(
    shapes: Sequence[Shape],
    shares: list[int],
    lines: Sequence[tuple[float, float]],
    left: int,
) -> tuple[Pipe, ...] | None:
    """Return pipes with what is `left` dealt out, one each, to those that end first."""
    if left < 0:
        return None
    extra = [0] * len(shapes)
    while left:
        if all(more == shape.copies for more, shape in zip(extra, shapes, strict=True)):
            shares, extra = [n + 1 for n in shares], [0] * len(shapes)
        at = min(
            (at for at, shape in enumerate(shapes) if extra[at] < shape.copies),
            key=lambda at: lines[at][0] + lines[at][1] * (shares[at] + 1),
        )
        some = min(left, shapes[at].copies - extra[at])
        extra[at] += some
        left -= some
    pipes = []
    for shape, n, more in zip(shapes, shares, extra, strict=True):
        for micro, copies in ((n + 1, more), (n, shape.copies - more)):
            if copies:
                pipes.append(Pipe(shape.kinds, shape.layers, micro, copies))
    return tuple(pipes)
