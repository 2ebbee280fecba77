"""Exhaustive search for small clusters: every set of disjoint ordered pipelines, every cut, every
share, pruned by bounds that never exceed what the simulation gives.

Nodes of one kind are interchangeable, so sequences of kinds are enumerated instead of nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np

from control.planner.best import TIE, Best, offer
from control.planner.bound import per_micro_batch_s
from control.planner.choices import SIMPLE, is_light, savings
from control.planner.cost import Model
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
from control.planner.groups import Block, groupings, orders
from control.planner.scenario import Ints
from control.planner.setting import Draft, Pipe, Setting


class Entry(NamedTuple):
    """One way to run a block's share: a bound below the whole step, and the pipeline."""

    bound: float
    pipe: Pipe


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
    _floor: float = 1.0
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
        for b, schedule in product(s.micro_batches, SIMPLE):
            if schedule in s.schedules:
                setting = Setting(b, schedule, tensor=s.tensors[0])
                self._savings(setting, [each for each in sets if len(each) <= s.total(b)])
            if self.stopped:
                return

    def _savings(self, plain: Setting, sets: Sequence[tuple[Block, ...]]) -> None:
        """Try what saves memory at the cost of time only where memory binds without."""
        s = self.model.scenario
        tried = self._binding = False
        for setting in savings(s, plain):
            if tried and not self._binding:
                return
            tried |= is_light(s, setting)
            for blocks_ in sets:
                if len(blocks_) >= s.min_replicas:
                    self._grouping(blocks_, setting)
                if self.stopped:
                    return

    @property
    def _limit_s(self) -> float:
        """How long a step on the nodes at hand may be at most."""
        return _limit(self.best.worth, self._floor)

    @property
    def _loose_s(self) -> float:
        """The same on whatever nodes."""
        return _limit(self.best.worth, self._least_floor)

    def _floor_of(self, blocks_: tuple[Block, ...]) -> float:
        worth = self.model.scenario.worth
        if worth is None:
            return 1.0
        return worth.least_factor([sum(counts) for counts in zip(*blocks_, strict=True)])

    @cached_property
    def _least_floor(self) -> float:
        kinds = range(len(self.model.scenario.kinds))
        return min(self._floor_of((tuple(int(kind == at) for kind in kinds),)) for at in kinds)

    def _most_replicas(self) -> int:
        s = self.model.scenario
        return min(s.max_replicas, s.num_nodes, s.total(min(s.micro_batches)))

    def _grouping(self, blocks_: tuple[Block, ...], setting: Setting) -> None:
        s = self.model.scenario
        total, replicas = s.total(setting.micro_batch), len(blocks_)
        self._floor = self._floor_of(blocks_)
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
            unit = per_micro_batch_s(
                self.model.scenario, block, setting.micro_batch, setting.recompute
            )
            self._units[key] = unit
        limit = self._limit_s
        return total if limit == math.inf else min(total, int(limit / unit))

    def _cap(self, block: Block, setting: Setting, replicas: int, least: int, most: int) -> int:
        """Return the most micro-batches for which the block has an entry; 0 if it has none for the
        least that it must take.
        """
        total = self.model.scenario.total(setting.micro_batch)
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
            offer(self.model, Draft(setting, tuple(chosen)), self.best)
            return
        for entry in lists[len(chosen)]:
            if self._is_over():
                return
            limit = self._limit_s
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
        key = (block, share, setting.memory_key, replicas, self._limits)
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
        limit = self._loose_s
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
            limit = self._loose_s
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


def _limit(worth: float, floor: float) -> float:
    return worth * (1 + TIE) / floor if 0 < floor < math.inf else math.inf


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
