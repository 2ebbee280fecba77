"""First plans for clusters too large to try everything: equal mixes of all nodes, and what the
knapsack over templates finds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from control.planner.aligned import aligned_templates
from control.planner.best import Best, offer
from control.planner.choices import settings
from control.planner.cost import Model
from control.planner.cuts import best_links
from control.planner.fit import Shape, climb, share, split
from control.planner.setting import Draft, Pipe, Setting
from control.planner.templates import (
    MAX_STATES,
    Templates,
    best_set,
    promising,
    templates,
    vectors,
)


def plain(model: Model, best: Best, *, light: bool = False) -> None:
    """Judge the plans that anybody would think of first, so that where one fits there is one: the
    whole model on each of the fastest nodes, and one pipeline through them.
    """
    s = model.scenario
    order = sorted(range(len(s.counts)), key=lambda kind: (-s.speed[kind], kind))
    for setting in settings(s, light=light):
        total = s.total(setting.micro_batch)
        room = min(total, s.max_replicas)
        shapes: list[Shape] = []
        row: list[int] = []
        for kind in order:
            copies = min(s.counts[kind], room - sum(shape.copies for shape in shapes))
            if copies > 0:
                shapes.append(Shape((kind,), (s.layers.count,), copies))
                judge(model, setting, shapes, best)
            row += [kind] * min(s.counts[kind], min(s.max_stages, s.layers.count) - len(row))
            kinds = tuple(reversed(row))
            layers = split(model, kinds, setting, micro_batches=total, replicas=1)
            if layers is not None:
                judge(model, setting, [Shape(kinds, layers, 1)], best)


class Mix(NamedTuple):
    """Shapes made by dealing nodes to pipelines, and about what a step takes with them."""

    step_s: float
    setting: Setting
    shapes: tuple[Shape, ...]


def judge(model: Model, setting: Setting, shapes: Sequence[Shape], best: Best) -> bool:
    """Share the batch among the shapes, simulate, and keep the draft if it is the best so far."""
    s = model.scenario
    replicas = sum(shape.copies for shape in shapes)
    if not s.min_replicas <= replicas <= s.max_replicas:
        return False
    pipes = share(model, setting, shapes, s.total(setting.micro_batch))
    return pipes is not None and offer(model, Draft(setting, pipes), best)


def mixes(counts: Sequence[int], replicas: int) -> dict[tuple[int, ...], int]:
    """Deal all nodes to `replicas` pipelines, each kind evenly, what is left over in turn. Return
    how often each block comes out.
    """
    even = [count // replicas for count in counts]
    rows = [list(even) for _ in range(replicas)]
    turn = 0
    for kind, count in enumerate(counts):
        for _ in range(count % replicas):
            rows[turn][kind] += 1
            turn = (turn + 1) % replicas
    found: dict[tuple[int, ...], int] = {}
    for row in rows:
        found[tuple(row)] = found.get(tuple(row), 0) + 1
    return found


def quick_mix(
    model: Model, setting: Setting, replicas: int, drop: int, *, slow_first: bool = True
) -> Mix | None:
    """Return the equal mix of all nodes but those of the `drop` slowest kinds; None where it does
    not fit.
    """
    s = model.scenario
    counts = list(s.counts)
    for kind in sorted(range(len(counts)), key=lambda kind: (s.speed[kind], kind))[:drop]:
        counts[kind] = 0
    total = s.total(setting.micro_batch)
    if replicas > min(sum(counts), total, s.max_replicas) or replicas < s.min_replicas:
        return None
    shapes, rate, ahead, backward = [], 0.0, 0.0, 0.0
    near = max(1, total // replicas)
    for row, count in sorted(mixes(counts, replicas).items()):
        if not 1 <= sum(row) <= min(s.max_stages, s.layers.count):
            return None
        kinds = by_speed(model, row, slow_first=slow_first)
        layers = split(model, kinds, setting, micro_batches=near, replicas=replicas)
        if layers is None:
            return None
        shapes.append(Shape(kinds, layers, count))
        costs = model.costs(Pipe(kinds, layers, near), setting)
        stages = [f + b for f, b in zip(costs.forward, costs.backward, strict=True)]
        hops = sum(costs.down) + sum(costs.up) + sum(costs.down_lat) + sum(costs.up_lat)
        slowest = max(stages)
        # Until the first and after the last micro-batch: all other stages once.
        rate += count / slowest
        ahead += count * (sum(stages) - slowest + hops) / slowest
        backward = max(backward, sum(costs.backward) - costs.backward[-1])
    if not math.isfinite(ahead):
        return None
    step_s = (total + ahead) / rate
    if replicas > 1:
        held = float(s.layers.params.sum())
        most = max(sum(s.layers.params[: shape.layers[0]]) for shape in shapes)
        first = most / held if held else 0.0
        whole = _sync_s(model, setting, replicas)
        step_s += whole * first if len(shapes) == 1 else max(whole * first, whole - backward)
    return Mix(step_s, setting, tuple(shapes))


def _sync_s(model: Model, setting: Setting, replicas: int) -> float:
    """Return about what the sum of all gradients takes, one layer after another."""
    s = model.scenario
    fastest, nearest = best_links(s)
    size = s.grad_bytes * float(s.layers.params.sum())
    pieces = size / setting.bucket if setting.bucket is not None else s.layers.count
    hops = 2 * (replicas - 1)
    bw = float(np.median(fastest))
    if bw <= 0:
        return math.inf
    return hops / replicas * size / bw + pieces * hops * float(np.median(nearest))


def by_speed(model: Model, row: Sequence[int], *, slow_first: bool) -> tuple[int, ...]:
    """Return a block's nodes as kinds, ordered by speed."""
    speed = model.scenario.speed
    kinds = [kind for kind, count in enumerate(row) for _ in range(count)]
    return tuple(
        sorted(kinds, key=lambda kind: (speed[kind] if slow_first else -speed[kind], kind))
    )


def improved(
    model: Model, setting: Setting, shapes: Sequence[Shape], *, reorder: bool = True
) -> list[Shape]:
    """Return the shapes with orders and cuts improved for the shares that they get."""
    s = model.scenario
    replicas = sum(shape.copies for shape in shapes)
    pipes = share(model, setting, shapes, s.total(setting.micro_batch))
    if pipes is None:
        return list(shapes)
    share_of = {(pipe.kinds, pipe.layers): pipe.micro_batches for pipe in pipes}
    found = []
    for shape in shapes:
        kinds, layers, bound = climb(
            s,
            shape.kinds,
            shape.layers,
            setting,
            micro_batches=share_of[shape[:2]],
            replicas=replicas,
            reorder=reorder,
        )
        found.append(Shape(kinds, layers, shape.copies) if bound < math.inf else shape)
    return found


def island(counts: Sequence[int]) -> tuple[int, tuple[int, ...]]:
    """Return (how many, counts) of equal islands that a cluster is made of, small enough for the
    knapsack; what does not divide is left over.
    """
    best: tuple[float, int, tuple[int, ...]] | None = None
    for number in range(1, max(counts) + 1):
        small = tuple(count // number for count in counts)
        if math.prod(count + 1 for count in small) <= MAX_STATES and any(small):
            wasted = sum(count % number for count in counts) / sum(counts)
            rank = (round(wasted, 2), number, small)
            if best is None or rank < best:
                best = rank
            if number > 64:
                break
    return (best[1], best[2]) if best is not None else (1, tuple(counts))


def by_knapsack(
    model: Model,
    setting: Setting,
    best: Best,
    *,
    kept: int,
    replicas: int,
    floor_s: float,
    stop: Callable[[], bool],
) -> None:
    """Try the sets that the knapsack finds: of templates whose cuts meet, and of any."""
    s = model.scenario
    _, counts = island(s.counts)
    if math.prod(count + 1 for count in counts) > MAX_STATES:
        return
    near_s = best.step_s if best.step_s < math.inf else floor_s * 1.3
    for parts in PARTS:
        if stop() and best.draft is not None:
            return
        if s.layers.count % parts == 0 and parts <= s.num_nodes:
            choice = aligned_templates(
                s, setting, counts, parts, step_s=near_s, replicas=replicas, kept=kept
            )
            _try(model, setting, best, choice, floor_s, near_s)
    most = min(s.max_stages, s.layers.count, _LONGEST)
    choice = templates(s, setting, vectors(counts, most), step_s=near_s, replicas=replicas)
    if len(choice.per):
        _try(model, setting, best, promising(choice, s, near_s, kept), floor_s, near_s)


PARTS = (2, 3, 4, 6)
"""Into how many equal parts shared cuts divide the model."""

_LONGEST = 16
_STEPS = (1.02, 1.035, 1.05, 1.065, 1.08, 1.1, 1.15, 1.25)


def _try(
    model: Model,
    setting: Setting,
    best: Best,
    choice: Templates,
    floor_s: float,
    near_s: float,
) -> None:
    """Judge the best set of templates for each of some steps from the bound to the best plan."""
    if not len(choice.per):
        return
    s = model.scenario
    number, counts = island(s.counts)
    wanted = s.total(setting.micro_batch) / number
    seen = set()
    for factor in _STEPS:
        if floor_s * factor > near_s * 1.02:
            break
        taken, rows = best_set(choice, counts, floor_s * factor)
        if taken < 0.93 * wanted or tuple(rows) in seen:
            continue
        seen.add(tuple(rows))
        shapes = [choice.shapes[row]._replace(copies=copies * number) for row, copies in rows]
        judge(model, setting, shapes, best)
        if taken >= wanted * 1.02:
            break


def replica_choices(num_nodes: int, most: int) -> list[int]:
    """Return numbers of pipelines to try: all small ones, then ever more sparsely, powers of two
    among them.
    """
    found, value = set(), 1.0
    while round(value) <= min(num_nodes, most):
        found.add(round(value))
        value = value + 1 if value < 10 else value * 1.2
    return sorted(found | {1 << power for power in range(14) if 1 << power <= min(num_nodes, most)})
