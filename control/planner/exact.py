"""Exhaustive search for small clusters: every set of disjoint ordered pipelines, every cut, every
share, pruned by bounds that never exceed what the simulation gives.

Nodes of one kind are interchangeable, so sequences of kinds are enumerated instead of nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

import numpy as np

from control.planner.cost import Draft, Model, Pipe, Setting, Verdict
from control.planner.cuts import (
    CutCosts,
    all_cuts,
    cut_costs,
    fitting,
    step_bounds,
    sync_tails,
)

Block = tuple[int, ...]
"""How many nodes of each kind one pipeline has."""

TIE = 1e-9
"""Relative: plans closer than this are equally fast, and the simpler one is taken."""


class Entry(NamedTuple):
    """One way to run a block's share: a bound on the whole step, and the pipeline."""

    bound: float
    pipe: Pipe


NONE = Verdict(math.inf, (), 0.0, 0.0)


@dataclass
class Best:
    """The best draft so far."""

    draft: Draft | None = None
    verdict: Verdict = NONE

    @property
    def step_s(self) -> float:
        """Its seconds per step; infinite while there is none."""
        return self.verdict.step_s

    def offer(self, draft: Draft, verdict: Verdict) -> bool:
        """Take `draft` if it is faster, or as fast and simpler; return whether it was taken."""
        here, there = self.verdict.step_s, verdict.step_s
        if there == math.inf:
            return False
        if self.draft is not None:
            tie = abs(there - here) <= TIE * here
            if there >= here and not tie:
                return False
            if tie and _simplicity(draft) >= _simplicity(self.draft):
                return False
        self.draft, self.verdict = draft, verdict
        return True


def _simplicity(draft: Draft) -> tuple[object, ...]:
    setting = draft.setting
    return (
        draft.nodes,
        draft.replicas,
        draft.stages,
        setting.zero,
        setting.recompute,
        sorted((pipe.kinds, pipe.layers, pipe.micro_batches) for pipe in draft.pipes),
        -setting.micro_batch,
        setting.bucket is not None,
        setting.bucket or 0.0,
    )


def work_estimate(counts: tuple[int, ...], num_layers: int, max_stages: int) -> float:
    """Return about how many stages of cuts an exhaustive search has to judge."""
    total = 0.0
    for block in blocks(counts, min(max_stages, num_layers)):
        size = sum(block)
        orders = math.factorial(size) / math.prod(math.factorial(each) for each in block)
        total += orders * math.comb(num_layers - 1, size - 1) * size
    return total


def blocks(counts: tuple[int, ...], most: int) -> Iterator[Block]:
    """Return each block of 1 to `most` nodes that the counts allow."""
    for block in product(*(range(count + 1) for count in counts)):
        if 1 <= sum(block) <= most:
            yield block


def groupings(counts: tuple[int, ...], most: int, replicas: int) -> list[tuple[Block, ...]]:
    """Return each set of blocks that the counts allow: fewest nodes first, then fewest blocks."""
    choices = list(blocks(counts, most))
    found: list[tuple[Block, ...]] = []

    def extend(chosen: tuple[Block, ...], left: tuple[int, ...], first: int) -> None:
        if chosen:
            found.append(chosen)
        if len(chosen) == replicas:
            return
        for position in range(first, len(choices)):
            block = choices[position]
            if all(need <= have for need, have in zip(block, left, strict=True)):
                rest = tuple(have - need for need, have in zip(block, left, strict=True))
                extend((*chosen, block), rest, position)

    extend((), counts, 0)
    found.sort(key=lambda each: (sum(map(sum, each)), len(each), max(map(sum, each)), each))
    return found


def orders(block: Block) -> Iterator[tuple[int, ...]]:
    """Return each distinct order of a block's nodes, as kinds."""
    left = list(block)
    size = sum(block)
    path: list[int] = []

    def extend() -> Iterator[tuple[int, ...]]:
        if len(path) == size:
            yield tuple(path)
            return
        for kind, count in enumerate(left):
            if count:
                left[kind] -= 1
                path.append(kind)
                yield from extend()
                path.pop()
                left[kind] += 1

    yield from extend()


@dataclass
class Exact:
    """One exhaustive search.

    Attributes:
        best: improved in place; a good draft to begin with prunes much.
        stop: asked now and then whether time is up.
        least_share: fewest micro-batches of a pipeline per stage: 1 where the runtime needs as many
            micro-batches as stages, 0 where one will do.
    """

    model: Model
    best: Best
    stop: Callable[[], bool]
    stopped: bool = False
    _costs: dict[tuple[tuple[int, ...], int, bool], CutCosts] = field(default_factory=dict)
    _entries: dict[tuple[object, ...], list[Entry]] = field(default_factory=dict)
    _caps: dict[tuple[object, ...], int] = field(default_factory=dict)

    def search(self) -> None:
        """Improve `best` to the optimum, unless stopped."""
        s = self.model.scenario
        sets = groupings(s.counts, min(s.max_stages, s.layers.count), self._most_replicas())
        for b, schedule, recompute in product(s.micro_batches, s.schedules, s.recomputes):
            for zero in s.zeros:
                setting = Setting(b, schedule, zero, recompute)
                for blocks_ in sets:
                    if len(blocks_) >= s.min_replicas and len(blocks_) <= s.global_batch // b:
                        self._grouping(blocks_, setting)
                    if self.stopped:
                        return

    def _most_replicas(self) -> int:
        s = self.model.scenario
        return min(s.max_replicas, s.num_nodes, s.global_batch // min(s.micro_batches))

    def _grouping(self, blocks_: tuple[Block, ...], setting: Setting) -> None:
        s = self.model.scenario
        total, replicas = s.global_batch // setting.micro_batch, len(blocks_)
        rough = [self._rough_cap(block, setting, total) for block in blocks_]
        if sum(rough) < total or min(rough) < 1:
            return
        if self.stop():
            self.stopped = True
            return
        caps: dict[Block, int] = {}
        for position, block in enumerate(blocks_):
            if block not in caps:
                caps[block] = self._cap(block, setting, replicas, rough[position], total)
            others = sum(caps.get(each, rough[at]) for at, each in enumerate(blocks_))
            if others < total or caps[block] < 1:
                return
        self._shares(blocks_, [caps[block] for block in blocks_], setting, total, [])

    def _rough_cap(self, block: Block, setting: Setting, total: int) -> int:
        """Return how many micro-batches a block can take at most, by its speed alone."""
        unit = unit_bound(self.model, block, setting)
        limit = self.best.step_s * (1 + TIE)
        return total if limit == math.inf else min(total, int(limit / unit))

    def _cap(self, block: Block, setting: Setting, replicas: int, rough: int, total: int) -> int:
        """Return the most micro-batches for which the block has an entry."""
        low, high = 0, min(rough, total - replicas + 1)
        while low < high:
            middle = (low + high + 1) // 2
            if self._entries_of(block, middle, setting, replicas):
                low = middle
            else:
                high = middle - 1
        return low

    def _shares(
        self,
        blocks_: tuple[Block, ...],
        caps: list[int],
        setting: Setting,
        left: int,
        shares: list[int],
    ) -> None:
        """Try each way to share `left` micro-batches among the blocks not yet served."""
        at = len(shares)
        if at == len(blocks_):
            self._combine(blocks_, shares, setting)
            return
        others = sum(caps[at + 1 :])
        high = min(caps[at], left - (len(blocks_) - at - 1))
        if at and blocks_[at] == blocks_[at - 1]:
            high = min(high, shares[-1])
        for share in range(high, max(1, left - others) - 1, -1):
            if self._entries_of(blocks_[at], share, setting, len(blocks_)):
                self._shares(blocks_, caps, setting, left - share, [*shares, share])

    def _combine(self, blocks_: tuple[Block, ...], shares: list[int], setting: Setting) -> None:
        """Judge each combination of entries whose bounds leave hope."""
        lists = [
            self._entries_of(block, share, setting, len(blocks_))
            for block, share in zip(blocks_, shares, strict=True)
        ]
        self._choose(lists, [], setting)

    def _choose(self, lists: list[list[Entry]], chosen: list[Pipe], setting: Setting) -> None:
        if len(chosen) == len(lists):
            for bucket in self.model.scenario.buckets:
                draft = Draft(setting._replace(bucket=bucket), tuple(chosen))
                self.best.offer(draft, self.model.verdict(draft))
                if len(chosen) == 1:
                    return  # nothing is reduced
            return
        for entry in lists[len(chosen)]:
            if entry.bound > self.best.step_s * (1 + TIE):
                break
            self._choose(lists, [*chosen, entry.pipe], setting)

    def _entries_of(self, block: Block, share: int, setting: Setting, replicas: int) -> list[Entry]:
        """Return the ways to run `share` micro-batches on a block that may be part of a better
        plan, best first.
        """
        key = (block, share, setting.micro_batch, *setting[1:4], replicas)
        found = self._entries.get(key)
        if found is None:
            found = []
            for order in orders(block):
                found += self._entries_of_order(order, share, setting, replicas)
            found.sort()
            self._entries[key] = found
        return found

    def _entries_of_order(
        self, order: tuple[int, ...], share: int, setting: Setting, replicas: int
    ) -> list[Entry]:
        s = self.model.scenario
        if s.runtime and setting.schedule == "1f1b" and share < len(order):
            return []
        key = (order, setting.micro_batch, setting.recompute)
        costs = self._costs.get(key)
        if costs is None:
            counts = all_cuts(s.layers.count, len(order))
            costs = cut_costs(s, order, counts, setting)
            if costs.counts.size < 200_000:
                self._costs[key] = costs
        limit = self.best.step_s * (1 + TIE)
        bounds = step_bounds(s, order, costs, share, setting, replicas)
        fits = fitting(s, order, costs, share, setting, replicas)
        rows = np.flatnonzero(fits & (bounds <= limit) & np.isfinite(bounds))
        tails = sync_tails(s, order, costs.params[rows], setting, replicas)
        found = []
        for row, tail in zip(rows, tails, strict=True):
            pipe = Pipe(order, tuple(costs.counts[row].tolist()), share)
            times = self.model.times(pipe, setting)
            bound = times.end
            if replicas > 1:
                bound = max(bound, float((np.array(times.stage_ends) + tail).max()))
            if bound <= limit:
                found.append(Entry(bound, pipe))
        return found


def unit_bound(model: Model, block: Block, setting: Setting) -> float:
    """Return the seconds that a block needs per micro-batch at the least: each layer costs a node
    at least its share of the work that this node could do best.
    """
    s = model.scenario
    fwd, b = s.layers.fwd, setting.micro_batch
    factor = 1 + s.bwd_mult + (1 if setting.recompute else 0)
    rate = 0.0
    for kind, count in enumerate(block):
        if count:
            figures = s.kinds[kind]
            rate += count * float((fwd / (figures.t0 + b * fwd / figures.flops)).max())
    return factor * float(fwd.sum()) / rate
