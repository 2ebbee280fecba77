"""The cost model: what a plan takes per step, and what it needs of memory.

A plan here is over kinds of nodes (`control.planner.scenario`), with equal pipelines counted once.
Compute is affine in the micro-batch, pipelines are simulated event by event, gradients are summed
by a ring all-reduce per segment of layers, the optimizer follows when all sums are there, and a
stage's memory is parameters and activations in flight. With mixed-precision Adam, ZeRO 0 and 1 and
an optimizer that takes no time it is RCM-1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from control.planner import placing, simulate
from control.planner.contention import ALONE, Crowd, crowds_of
from control.planner.memory import host_needs, needs
from control.planner.placing import Placed, placed_apart
from control.planner.ring import Ring, rings, slowest
from control.planner.scenario import Scenario
from control.planner.setting import Draft, Pipe, Segment, Setting, segments
from control.planner.simulate import Costs, Times

ADAM_TOUCHES = 28.0
"""Bytes of memory that an update reads and writes per parameter."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a draft takes: seconds per step, the pipelines' part of it, and when the last all-reduce
    ends; the seconds for which links were busy with it, and those of the update after it.

    Attributes:
        worth: what plans are compared by; the step's seconds, if nothing else is asked for.
    """

    step_s: float
    pipe_s: tuple[float, ...]
    sync_end_s: float
    sync_busy_s: float
    update_s: float
    worth: float


@dataclass
class Model:
    """The cost model for one scenario, with what was computed before.

    Attributes:
        simulated: how many different pipelines were simulated.
        crowded: whether a draft was judged whose pipelines share links; on other nodes of the same
            kinds they might not.
        asked: on which nodes pipelines were asked for.
        ladders, lines: kept for `control.planner.fit`.
    """

    scenario: Scenario
    simulated: int = 0
    crowded: bool = False
    asked: dict[tuple[Pipe, ...], Placed] = field(default_factory=dict)
    ladders: dict[tuple[object, ...], Any] = field(default_factory=dict)
    lines: dict[tuple[object, ...], tuple[float, float]] = field(default_factory=dict)
    _times: dict[tuple[object, ...], Times] = field(default_factory=dict)
    _crowds: dict[tuple[object, ...], tuple[Crowd, ...]] = field(default_factory=dict)
    _rings: dict[tuple[tuple[int, int], ...], tuple[Ring, ...]] = field(default_factory=dict)

    def placed(self, draft: Draft) -> Placed:
        """Return the node of each place: the one that was asked for, else any of its kind."""
        return self.asked.get(draft.pipes) or placing.place(draft, self.scenario)

    def crowds(self, draft: Draft) -> tuple[Crowd, ...]:
        """Return with how many each pipe of a draft shares its links."""
        if not self.scenario.has_shared_links or draft.stages == 1:
            return (ALONE,) * len(draft.pipes)
        key = (draft.pipes, draft.setting.schedule, draft.setting.virtual)
        found = self._crowds.get(key)
        if found is None:
            found = self._crowds[key] = crowds_of(draft, self.scenario, self.placed(draft))
            self.crowded |= any(each != ALONE for each in found)
        return found

    def costs(
        self,
        pipe: Pipe,
        setting: Setting,
        gathers: Sequence[float] = (),
        crowd: Crowd = ALONE,
    ) -> Costs:
        """Return what the parts of a pipeline take.

        Args:
            gathers: of each stage, the seconds in which its parameters are gathered once.
            crowd: with how many it shares its links.
        """
        s, b = self.scenario, setting.micro_batch
        forward_of, backward_of = s.seconds(b, setting.recompute).rows
        forward, backward, cuts, low = [], [], [], 0
        for kind, count in zip(pipe.kinds, pipe.layers, strict=True):
            end = low + count
            forward.append(forward_of[kind][end] - forward_of[kind][low])
            backward.append(backward_of[kind][end] - backward_of[kind][low])
            cuts.append(end)
            low = end
        if gathers:
            # A backward gathers once more, and scatters the gradients.
            forward = [here + each for here, each in zip(forward, gathers, strict=True)]
            backward = [here + 2 * each for here, each in zip(backward, gathers, strict=True)]
        places = setting.places(len(pipe.kinds))
        # From one stage of a node to its next, nothing is sent.
        message = [
            b * float(s.layers.out[cut - 1]) if places[at] != places[at + 1] else 0.0
            for at, cut in enumerate(cuts[:-1])
        ]
        hops = list(zip(pipe.kinds, pipe.kinds[1:], strict=False))
        down = [_over(size, s.bw[i, j]) for size, (i, j) in zip(message, hops, strict=True)]
        up = [_over(size, s.bw[j, i]) for size, (i, j) in zip(message, hops, strict=True)]
        if crowd != ALONE:
            down = [each * share for each, share in zip(down, crowd.down, strict=True)]
            up = [each * share for each, share in zip(up, crowd.up, strict=True)]
        return Costs(
            tuple(forward),
            tuple(backward),
            tuple(down),
            tuple(float(s.lat[i, j]) for i, j in hops),
            tuple(up),
            tuple(float(s.lat[j, i]) for i, j in hops),
        )

    def times(
        self,
        pipe: Pipe,
        setting: Setting,
        gathers: tuple[float, ...] = (),
        crowd: Crowd = ALONE,
    ) -> Times:
        """Return when a pipeline and its stages end; infinite where a link is missing."""
        key = (*pipe[:3], *setting[:2], setting.recompute, setting.virtual, gathers, crowd)
        found = self._times.get(key)
        if found is None:
            self.simulated += 1
            costs = self.costs(pipe, setting, gathers, crowd)
            if math.inf in costs.down or math.inf in costs.up or math.inf in gathers:
                found = Times(math.inf, (math.inf,) * len(pipe.kinds))
            elif setting.schedule == "gpipe":
                found = simulate.gpipe(costs, pipe.micro_batches)
            elif setting.schedule == "1f1b":
                found = simulate.one_f_one_b(costs, pipe.micro_batches)
            else:
                v = setting.virtual
                ranks = len(pipe.kinds) // v
                found, _ = simulate.run(setting.schedule, costs, ranks, v, pipe.micro_batches)
            self._times[key] = found
        return found

    def memory(self, pipe: Pipe, setting: Setting, replicas: int) -> tuple[float, ...]:
        """Return the bytes that each place of a pipeline needs."""
        return needs(self.scenario, pipe, setting, replicas)

    def fits(self, draft: Draft) -> bool:
        """Whether every stage fits into its node and its host, and copies of a layer can lie in
        different domains where that is asked for.
        """
        kinds, setting = self.scenario.kinds, draft.setting
        holds = all(
            need <= kinds[kind].mem and on_host <= kinds[kind].host_mem
            for pipe in draft.pipes
            for kind, need, on_host in zip(
                pipe.kinds,
                self.memory(pipe, setting, draft.replicas),
                host_needs(self.scenario, pipe, setting, draft.replicas),
                strict=False,
            )
        )
        if not holds or not self.scenario.domains or draft.replicas == 1:
            return holds
        return placed_apart(draft, self.scenario) is not None

    def verdict(self, draft: Draft) -> Verdict:
        """Return what a draft takes, with the best order of each ring; infinite where it cannot be
        carried out.
        """
        if draft.setting.zero == 3 and draft.replicas > 1:
            return self._gathered(draft)
        times = [
            self.times(pipe, draft.setting, (), crowd)
            for pipe, crowd in zip(draft.pipes, self.crowds(draft), strict=True)
        ]
        ends = tuple(each.end for each in times)
        if draft.replicas == 1 or math.inf in ends:
            return self._judged(draft, ends, 0.0, 0.0)
        sync_end, busy = self._sync(draft, times)
        return self._judged(draft, ends, sync_end, busy)

    def _judged(
        self, draft: Draft, ends: tuple[float, ...], sync_end: float, busy: float
    ) -> Verdict:
        update_s = self._update_s(draft)
        step_s = max(*ends, sync_end) + update_s
        worth = self.scenario.worth
        judged = step_s
        if worth is not None:
            judged = worth.of(step_s, draft.counts(len(self.scenario.kinds)))
        return Verdict(step_s, ends, sync_end, busy, update_s, judged)

    def _gathered(self, draft: Draft) -> Verdict:
        """Judge pipelines that gather each layer together (ZeRO 3)."""
        ends: tuple[float, ...] = (math.inf,) * len(draft.pipes)
        if draft.is_alike:
            gathers = tuple(self._gather_s(draft, stage) for stage in range(len(draft.pipes[0][1])))
            ends = tuple(
                self.times(pipe, draft.setting, gathers, crowd).end
                for pipe, crowd in zip(draft.pipes, self.crowds(draft), strict=True)
            )
        return self._judged(draft, ends, 0.0, 0.0)

    def _gather_s(self, draft: Draft, stage: int) -> float:
        s, replicas = self.scenario, draft.replicas
        first = sum(draft.pipes[0].layers[:stage])
        count = draft.pipes[0].layers[stage]
        size = s.weight_bytes * float(s.layers.params[first : first + count].sum())
        choice = self.rings([(pipe.kinds[stage], pipe.copies) for pipe in draft.pipes])
        hops = replicas - 1
        return min(
            (count * hops * ring.lat + hops / replicas * size / ring.bw for ring in choice),
            default=math.inf,
        )

    def _update_s(self, draft: Draft) -> float:
        """Return for how long the slowest node updates its parameters once all sums are there, and
        gives what it has updated to the other replicas.
        """
        s, setting = self.scenario, draft.setting
        if not s.counts_updates:
            return self._given_s(draft)
        share = draft.replicas if setting.zero else 1
        # Gradients go down to the host, parameters come up.
        slowest, moved = 0.0, ADAM_TOUCHES / (2 * s.weight_bytes)
        for pipe in draft.pipes:
            ends = np.cumsum(pipe.layers)
            sums = s.layers.sums[1]
            by_stage = sums[ends] - sums[ends - np.array(pipe.layers)]
            by_place: dict[int, float] = {}
            for place, params in zip(
                setting.places(len(pipe.kinds)), by_stage.tolist(), strict=True
            ):
                by_place[place] = by_place.get(place, 0.0) + params
            for place, params in by_place.items():
                figures = s.kinds[pipe.kinds[place]]
                bytes_per_s = figures.memory_bw
                if setting.offload:
                    bytes_per_s = min(figures.host_bw, moved * figures.host_link_bw)
                slowest = max(slowest, ADAM_TOUCHES * params / share / bytes_per_s)
        return slowest + self._given_s(draft)

    def _given_s(self, draft: Draft) -> float:
        """Return for how long replicas give each other what they have updated, where the sums have
        not paid for it.
        """
        s, setting, replicas = self.scenario, draft.setting, draft.replicas
        if not s.runtime or setting.zero not in {1, 2} or replicas == 1:
            return 0.0
        spent: dict[tuple[int, int], float] = {}
        hops = replicas - 1
        for segment in segments(draft):
            group = [
                (draft.pipes[at].kinds[each], draft.pipes[at].copies)
                for at, each in enumerate(segment.stages)
            ]
            params = float(s.layers.params[segment.first : segment.end].sum())
            pieces = max(1, math.ceil(s.grad_bytes * params / (setting.bucket or math.inf)))
            takes = min(
                (
                    pieces * hops * ring.lat + hops / replicas * s.weight_bytes * params / ring.bw
                    for ring in self.rings(group)
                ),
                default=math.inf,
            )
            for at, stage in enumerate(segment.stages):
                place = setting.places(len(draft.pipes[at].kinds))[stage]
                spent[at, place] = spent.get((at, place), 0.0) + takes
        return max(spent.values())

    def _sync(self, draft: Draft, times: Sequence[Times]) -> tuple[float, float]:
        s, setting = self.scenario, draft.setting
        free = [[0.0] * len(pipe.kinds) for pipe in draft.pipes]
        late = [[0.0] * len(pipe.kinds) for pipe in draft.pipes]
        places = [setting.places(len(pipe.kinds)) for pipe in draft.pipes]
        busy = end = 0.0
        for segment in segments(draft):
            group = [
                (draft.pipes[at].kinds[stage], draft.pipes[at].copies)
                for at, stage in enumerate(segment.stages)
            ]
            choice = self.rings(group)
            if not choice:
                return math.inf, 0.0
            for bucket in self._buckets(segment, setting):
                ready = 0.0
                for at, stage in enumerate(segment.stages):
                    place = places[at][stage]
                    done = times[at].stage_ends[stage] + late[at][place]
                    if s.overlap:
                        done -= self._still_to_run(draft.pipes[at], stage, bucket[0], setting)
                    ready = max(ready, done, free[at][place])
                takes = min(
                    self.all_reduce(bucket[1], draft.replicas, ring, setting) for ring in choice
                )
                end_here = ready + takes
                for at, stage in enumerate(segment.stages):
                    place = places[at][stage]
                    free[at][place] = end_here
                    slowdown = s.kinds[draft.pipes[at].kinds[stage]].overlap_slowdown
                    if slowdown > 1:
                        computes_s = times[at].stage_ends[stage] + late[at][place] - ready
                        together = min(takes, slowdown * max(0.0, computes_s))
                        late[at][place] += together * (1 - 1 / slowdown)
                busy += takes
                end = max(end, end_here)
        return end, busy

    def rings(self, group: Sequence[tuple[int, int]]) -> tuple[Ring, ...]:
        """Return the rings worth taking over so many nodes of each kind; none where there is no
        cycle.
        """
        counts: dict[int, int] = {}
        for kind, count in group:
            counts[kind] = counts.get(kind, 0) + count
        key = tuple(sorted(counts.items()))
        if key not in self._rings:
            s = self.scenario
            # The runtime's collectives go in the order of ranks, whatever the links.
            choose = slowest if s.runtime else rings
            self._rings[key] = choose(s.bw, s.lat, key)
        return self._rings[key]

    def _buckets(self, segment: Segment, setting: Setting) -> list[tuple[int, float]]:
        """Return (lowest layer, bytes) of what is reduced at once, from the last layer down."""
        s = self.scenario
        if not s.overlap:
            params = s.layers.sums[1]
            size = s.grad_bytes * float(params[segment.end] - params[segment.first])
            return [(segment.first, size)]
        found, size = [], 0.0
        for layer in range(segment.end - 1, segment.first - 1, -1):
            size += s.grad_bytes * float(s.layers.params[layer])
            if layer == segment.first or (setting.bucket is not None and size >= setting.bucket):
                found.append((layer, size))
                size = 0.0
        return found

    def _still_to_run(self, pipe: Pipe, stage: int, layer: int, setting: Setting) -> float:
        """Return how long the last backward goes on below `layer`."""
        table = self.scenario.seconds(setting.micro_batch, setting.recompute).rows[1]
        row = table[pipe.kinds[stage]]
        return row[layer] - row[sum(pipe.layers[:stage])]

    def all_reduce(self, size: float, replicas: int, ring: Ring, setting: Setting) -> float:
        """Return what it takes to sum `size` bytes over a ring."""
        pieces = 1
        if setting.bucket is not None and not self.scenario.overlap:
            pieces = max(1, math.ceil(size / setting.bucket))
        hops = self.scenario.laps(setting.zero) * (replicas - 1)
        return pieces * hops * ring.lat + hops / replicas * size / ring.bw


def _over(size: float, bw: float) -> float:
    if bw > 0:
        return size / float(bw)
    return math.inf
