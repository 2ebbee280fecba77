"""Which nodes the places of a draft are: a plan is sought over kinds, and carried out on nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from control.planner.scenario import Scenario
from control.planner.setting import Draft, Pipe

Placed = list[list[list[int]]]
"""For each pipe, for each copy, the node of each place."""

MOST_TRIES = 2000
"""Nodes that are tried for places before it is given up that copies of a layer lie apart."""


def place(draft: Draft, scenario: Scenario) -> Placed:
    """Return for each pipe, for each copy, the node of each place: such that no two copies of a
    layer lie in one domain where that is asked for and can be; else the first free one of its kind.
    """
    apart = placed_apart(draft, scenario) if scenario.domains else None
    if apart is not None:
        return apart
    free = [iter(members) for members in scenario.members]
    return [
        [[next(free[kind]) for kind in _kinds(draft, pipe)] for _ in range(pipe.copies)]
        for pipe in draft.pipes
    ]


def placed_apart(draft: Draft, scenario: Scenario) -> Placed | None:
    """Return nodes for all places such that no two copies of a layer lie in one domain; None where
    none were found.
    """
    if draft.replicas > len(set(scenario.domains)):
        return None
    search = _Apart.of(draft, scenario)
    if not search.fill(0):
        return None
    nodes = iter(search.chosen)
    return [
        [[next(nodes) for _ in _kinds(draft, pipe)] for _ in range(pipe.copies)]
        for pipe in draft.pipes
    ]


def _kinds(draft: Draft, pipe: Pipe) -> tuple[int, ...]:
    return pipe.kinds[: len(pipe.kinds) // draft.setting.virtual]


@dataclass
class _Apart:
    """A search for nodes, place by place, that goes back where it comes to no end.

    Attributes:
        places: of all pipelines in turn: pipeline, kind, and the layers that are held there.
        free: of each kind and domain, the nodes that are left.
        taken: of each layer, the domains that hold a copy.
    """

    places: list[tuple[int, int, tuple[int, ...]]]
    free: list[dict[str, list[int]]]
    taken: list[set[str]]
    domains: tuple[str, ...]
    chosen: list[int] = field(default_factory=list)
    tries: int = 0

    @classmethod
    def of(cls, draft: Draft, scenario: Scenario) -> _Apart:
        free: list[dict[str, list[int]]] = []
        for members in scenario.members:
            by_domain: dict[str, list[int]] = {}
            for node in reversed(members):
                by_domain.setdefault(scenario.domains[node], []).append(node)
            free.append(by_domain)
        places, pipeline = [], 0
        for pipe in draft.pipes:
            held = _held(draft, pipe)
            for _ in range(pipe.copies):
                places += [
                    (pipeline, kind, layers)
                    for kind, layers in zip(_kinds(draft, pipe), held, strict=True)
                ]
                pipeline += 1
        taken: list[set[str]] = [set() for _ in range(scenario.layers.count)]
        return cls(places, free, taken, scenario.domains)

    def fill(self, at: int) -> bool:
        """Choose nodes from the place `at` on; return whether that came to its end."""
        if at == len(self.places):
            return True
        _, kind, layers = self.places[at]
        for domain in self._order(at):
            if self.tries >= MOST_TRIES:
                return False
            self.tries += 1
            self.chosen.append(self.free[kind][domain].pop())
            for layer in layers:
                self.taken[layer].add(domain)
            if self.fill(at + 1):
                return True
            for layer in layers:
                self.taken[layer].discard(domain)
            self.free[kind][domain].append(self.chosen.pop())
        return False

    def _order(self, at: int) -> list[str]:
        """Return the domains that the place may be in: first those that its pipeline is in already,
        since these are lost for other pipelines anyway, then those with most nodes left.
        """
        pipeline, kind, layers = self.places[at]
        own = {
            self.domains[node]
            for node, place in zip(self.chosen, self.places, strict=False)
            if place[0] == pipeline
        }
        open_ = [
            (domain not in own, -len(nodes), domain)
            for domain, nodes in self.free[kind].items()
            if nodes and not any(domain in self.taken[layer] for layer in layers)
        ]
        return [domain for _, _, domain in sorted(open_)]


def _held(draft: Draft, pipe: Pipe) -> list[tuple[int, ...]]:
    """Return the layers that each place of a pipeline holds."""
    held: list[list[int]] = [[] for _ in _kinds(draft, pipe)]
    for place, layers in zip(
        draft.setting.places(len(pipe.kinds)), _ranges(pipe.layers), strict=True
    ):
        held[place] += layers
    return [tuple(layers) for layers in held]


def _ranges(counts: tuple[int, ...]) -> Iterator[range]:
    return (range(first, end) for first, end in pairwise(accumulate(counts, initial=0)))
