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
    FREE,
    CutCosts,
    all_cuts,
    cut_costs,
    fitting,
    ring_limits,
    step_bounds,
    sync_tails,
)
from control.planner.scenario import Ints

Block = tuple[int, ...]
"""How many nodes of each kind one pipeline has."""

TIE = 1e-9
"""Relative: plans closer than this are equally fast, and the simpler one is taken."""


class Entry(NamedTuple):
    """One way to run a block's share: a bound below the whole step, and the pipeline."""

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
        stop: asked now and then whether time is up; then `stopped`, and `best` need not be the
            optimum.
    """

    model: Model
    best: Best
    stop: Callable[[], bool]
    stopped: bool = False
    _binding: bool = False
    _limits: tuple[float, float] = FREE
    _work: int = 0
    _alive: dict[tuple[object, ...], tuple[int, list[tuple[Ints, CutCosts]]]] = field(
        default_factory=dict
    )
    _bounds: dict[tuple[object, ...], float] = field(default_factory=dict)
    _entries: dict[tuple[object, ...], list[Entry]] = field(default_factory=dict)
    _units: dict[tuple[object, ...], float] = field(default_factory=dict)

    def search(self) -> None:
        """Improve `best` to the optimum, unless stopped."""
        s = self.model.scenario
        sets = groupings(s.counts, min(s.max_stages, s.layers.count), self._most_replicas())
        # Those that can do most work come first: what they find rules the others out.
        sets.sort(key=lambda each: -sum(float(np.dot(block, s.speed)) for block in each))
        for b, schedule in product(s.micro_batches, s.schedules):
            # Sharded states and recompute only ever help where memory binds.
            for recompute, zero in product(sorted(s.recomputes), sorted(s.zeros)):
                self._binding = False
                setting = Setting(b, schedule, zero, recompute)
                for blocks_ in sets:
                    if len(blocks_) >= s.min_replicas and len(blocks_) <= s.global_batch // b:
                        self._grouping(blocks_, setting)
                    if self.stopped:
                        return
                if not self._binding:
                    break

    def _most_replicas(self) -> int:
        s = self.model.scenario
        return min(s.max_replicas, s.num_nodes, s.global_batch // min(s.micro_batches))

    def _grouping(self, blocks_: tuple[Block, ...], setting: Setting) -> None:
        s = self.model.scenario
        total, replicas = s.global_batch // setting.micro_batch, len(blocks_)
        self._work += _GROUPING_WORK
        if self._is_over():
            return
        rough = [self._rough_cap(block, setting, total) for block in blocks_]
        if sum(rough) < total or min(rough) < 1:
            return
        self._limits = ring_limits(s, blocks_)
        caps = list(rough)
        for position, block in enumerate(blocks_):
            if position and block == blocks_[position - 1]:
                caps[position] = caps[position - 1]
            else:
                least = max(1, total - (sum(caps) - caps[position]))
                caps[position] = self._cap(block, setting, replicas, least, caps[position])
            if caps[position] < 1 or sum(caps) < total:
                return
        self._shares(blocks_, caps, setting, total, [])

    def _is_over(self) -> bool:
        """Return whether there is too much to try, or time is up."""
        self.stopped = self.stopped or self._work > MAX_WORK or self.stop()
        return self.stopped

    def _rough_cap(self, block: Block, setting: Setting, total: int) -> int:
        """Return how many micro-batches a block can take at most, by its speed alone."""
        key = (block, setting.micro_batch, setting.recompute)
        unit = self._units.get(key)
        if unit is None:
            unit = self._units[key] = unit_bound(self.model, block, setting)
        limit = self.best.step_s * (1 + TIE)
        return total if limit == math.inf else min(total, int(limit / unit))

    def _cap(self, block: Block, setting: Setting, replicas: int, least: int, most: int) -> int:
        """Return the most micro-batches for which the block has an entry; 0 if it has none for the
        least that it must take.
        """
        total = self.model.scenario.global_batch // setting.micro_batch
        low, high = least - 1, min(most, total - replicas + 1)
        while low < high:
            middle = (low + high + 1) // 2 if low >= least else least
            if self._entries_of(block, middle, setting, replicas, least):
                low = middle
            elif middle == least:
                return 0
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
            if self._is_over():
                return
            if self._entries_of(blocks_[at], share, setting, len(blocks_), share):
                self._shares(blocks_, caps, setting, left - share, [*shares, share])

    def _combine(self, blocks_: tuple[Block, ...], shares: list[int], setting: Setting) -> None:
        """Judge each combination of entries whose bounds leave hope."""
        lists = [
            self._entries_of(block, share, setting, len(blocks_), share)
            for block, share in zip(blocks_, shares, strict=True)
        ]
        self._choose(lists, [], setting)

    def _choose(self, lists: list[list[Entry]], chosen: list[Pipe], setting: Setting) -> None:
        if len(chosen) == len(lists):
            self._work += _VERDICT_WORK * len(self.model.scenario.buckets)
            for bucket in self.model.scenario.buckets:
                draft = Draft(setting._replace(bucket=bucket), tuple(chosen))
                self.best.offer(draft, self.model.verdict(draft))
                if len(chosen) == 1:
                    return  # nothing is reduced
            return
        for entry in lists[len(chosen)]:
            if self._is_over():
                return
            limit = self.best.step_s * (1 + TIE)
            if entry.bound > limit:
                break
            if self._simulated(entry.pipe, setting, len(lists)) <= limit:
                self._choose(lists, [*chosen, entry.pipe], setting)

    def _simulated(self, pipe: Pipe, setting: Setting, replicas: int) -> float:
        """Return what a step takes at least with this pipeline, from its simulation."""
        times = self.model.times(pipe, setting)
        if replicas == 1:
            return times.end
        key = (pipe, setting, replicas, self._limits)
        found = self._bounds.get(key)
        if found is None:
            s = self.model.scenario
            ends = np.cumsum(pipe.layers)
            sums = s.layers.sums[1]
            params = (sums[ends] - sums[ends - np.array(pipe.layers)])[None]
            tails = sync_tails(s, pipe.kinds, params, setting, replicas, self._limits)[0]
            found = max(times.end, float((np.array(times.stage_ends) + tails).max()))
            self._bounds[key] = found
        return found

    def _entries_of(
        self, block: Block, share: int, setting: Setting, replicas: int, least: int
    ) -> list[Entry]:
        """Return the ways to run `share` micro-batches on a block that may be part of a better
        plan, the most hopeful first. No share below `least` will be asked for soon.
        """
        key = (block, share, setting.micro_batch, *setting[1:4], replicas, self._limits)
        found = self._entries.get(key)
        if found is None:
            found = self._entries[key] = self._sought(block, share, setting, replicas, least)
        return found

    def _sought(
        self, block: Block, share: int, setting: Setting, replicas: int, least: int
    ) -> list[Entry]:
        s = self.model.scenario
        if s.runtime and setting.schedule == "1f1b" and share < sum(block):
            return []
        self._work += _CALL_WORK
        limit = self.best.step_s * (1 + TIE)
        found = []
        for kinds, costs in self._living(block, setting, least):
            if self._is_over():
                return []
            self._work += kinds.size
            bounds = step_bounds(s, kinds, costs, share, setting, replicas, self._limits)
            hopeful = (bounds <= limit) & np.isfinite(bounds)
            if not hopeful.any():
                continue
            fits = fitting(s, kinds, costs, share, setting, replicas)
            self._binding = self._binding or bool((hopeful & ~fits).any())
            for row in np.flatnonzero(fits & hopeful):
                order, layers = tuple(kinds[row].tolist()), tuple(costs.counts[row].tolist())
                found.append(Entry(float(bounds[row]), Pipe(order, layers, share)))
        found.sort()
        return found

    def _living(self, block: Block, setting: Setting, least: int) -> list[tuple[Ints, CutCosts]]:
        """Return the ways to run a block that are not ruled out with `least` micro-batches: more
        only take longer.
        """
        key = (block, *setting[:2], setting.recompute)
        kept = self._alive.get(key)
        if kept is None or kept[0] > least:
            limit = self.best.step_s * (1 + TIE)
            parts: list[tuple[Ints, CutCosts]] = []
            for kinds, costs in self._ways(block, setting):
                if self._is_over():
                    return parts
                self._work += kinds.size
                rows = step_bounds(self.model.scenario, kinds, costs, least, setting, 1) <= limit
                if rows.any():
                    parts.append((kinds[rows], costs.only(rows)))
            kept = self._alive[key] = (least, parts)
        return kept[1]

    def _ways(self, block: Block, setting: Setting) -> Iterator[tuple[Ints, CutCosts]]:
        """Yield all orders of a block with all cuts, some at a time, a row for each."""
        s = self.model.scenario
        cuts = all_cuts(s.layers.count, sum(block))
        listed = list(orders(block))
        some = max(1, _ROWS // len(cuts))
        for first in range(0, len(listed), some):
            part = np.array(listed[first : first + some], dtype=np.int64)
            kinds = np.repeat(part, len(cuts), axis=0)
            yield kinds, cut_costs(s, kinds, np.tile(cuts, (len(part), 1)), setting)


MAX_WORK = 40_000_000
"""Stages of ways that may be judged until the search gives up: some 15 s of one core."""

_VERDICT_WORK = 1_000
"""What judging a whole plan counts for."""

_CALL_WORK = 1_000
"""What judging a block's ways once more counts for beside their number."""

_GROUPING_WORK = 10
"""What looking at a set of blocks counts for, be it ruled out at once."""

_ROWS = 8_000
"""Ways that are judged at once: their arrays stay in a core's cache."""


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
