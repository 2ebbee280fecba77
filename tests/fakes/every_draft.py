"""Every plan of a tiny scenario, whatever it leaves open, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise, permutations, product

from control.planner.choices import is_proven
from control.planner.cost import Model
from control.planner.scenario import Scenario
from control.planner.setting import Draft, Pipe, Setting


def every_draft(scenario: Scenario) -> Iterator[Draft]:
    """Yield every plan with one stage to a place, fitting or not."""
    s = scenario
    for b, schedule, zero, recompute, offload in product(
        s.micro_batches, s.schedules, s.zeros, s.recomputes, s.offloads
    ):
        setting = Setting(b, schedule, zero, recompute, s.buckets[0], offload=offload)
        if is_proven(setting):
            for sequences in _groups(s):
                for pipes in _pipes(s, sequences, s.total(b)):
                    yield Draft(setting, pipes)


def least_worth(scenario: Scenario) -> float:
    """Return what the best of them is judged by; infinite where none fits."""
    model = Model(scenario)
    fitting = (draft for draft in every_draft(scenario) if model.fits(draft))
    return min((model.verdict(draft).worth for draft in fitting), default=float("inf"))


def _groups(s: Scenario) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield each set of disjoint ordered rows of nodes, as kinds."""
    found = set()
    for size in range(1, s.num_nodes + 1):
        for nodes in permutations(range(s.num_nodes), size):
            for cuts in product((False, True), repeat=size - 1):
                edges = [0, *(at + 1 for at, cut in enumerate(cuts) if cut), size]
                rows = [nodes[low:high] for low, high in pairwise(edges)]
                kinds = sorted(tuple(s.kind_of[node] for node in row) for row in rows)
                if max(map(len, kinds)) <= min(s.layers.count, s.max_stages):
                    found.add(tuple(kinds))
    return iter(sorted(found))


def _pipes(
    s: Scenario, rows: tuple[tuple[int, ...], ...], total: int
) -> Iterator[tuple[Pipe, ...]]:
    if len(rows) > total:
        return
    cuts = [list(_parts(s.layers.count, len(row))) for row in rows]
    for shares in _parts(total, len(rows)):
        for layers in product(*cuts):
            yield tuple(Pipe(*each) for each in zip(rows, layers, shares, strict=True))


def _parts(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    for inner in combinations(range(1, total), parts - 1):
        yield tuple(high - low for low, high in pairwise((0, *inner, total)))
