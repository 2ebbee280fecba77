"""The cost model RCM-1: what a plan takes per step, and what it needs of memory.

A plan here is over kinds of nodes (`control.planner.scenario`), with equal pipelines counted once.
Compute is affine in the micro-batch, pipelines are simulated event by event, gradients are summed
by a ring all-reduce per segment of layers, and a stage's memory is parameters and activations in
flight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from control.planner import simulate
from control.planner.ring import Ring, rings, slowest
from control.planner.scenario import Scenario
from control.planner.simulate import Costs, Times
from trainmaster.schedules import named, order_of


class Setting(NamedTuple):
    """What all pipelines of a plan share."""

    micro_batch: int
    schedule: str = "1f1b"
    zero: int = 0
    recompute: bool = False
    bucket: float | None = None
    virtual: int = 1

    def places(self, stages: int) -> tuple[int, ...]:
        """Return which place of a pipeline holds each of its stages."""
        if self.virtual == 1:
            return tuple(range(stages))
        schedule, ranks = named(self.schedule), stages // self.virtual
        return tuple(schedule.rank_of(ranks, self.virtual, stage) for stage in range(stages))


class Pipe(NamedTuple):
    """`copies` equal pipelines: the kind of node and the number of layers of each stage, and the
    micro-batches of each of the pipelines. With `virtual` stages to a node, it is named for each.
    """

    kinds: tuple[int, ...]
    layers: tuple[int, ...]
    micro_batches: int
    copies: int = 1


@dataclass(frozen=True, slots=True)
class Draft:
    """A plan over kinds."""

    setting: Setting
    pipes: tuple[Pipe, ...]

    @property
    def replicas(self) -> int:
        """Number of pipelines."""
        return sum(pipe.copies for pipe in self.pipes)

    @property
    def nodes(self) -> int:
        """Number of nodes in use."""
        return sum(pipe.copies * len(pipe.kinds) for pipe in self.pipes) // self.setting.virtual

    @property
    def stages(self) -> int:
        """Stages of the longest pipeline."""
        return max(len(pipe.kinds) for pipe in self.pipes) // self.setting.virtual

    @property
    def micro_batches(self) -> int:
        """Micro-batches per step."""
        return sum(pipe.copies * pipe.micro_batches for pipe in self.pipes)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a draft takes: seconds per step, the pipelines' part of it, and when the last all-reduce
    ends; and the seconds for which links were busy with it.
    """

    step_s: float
    pipe_s: tuple[float, ...]
    sync_end_s: float
    sync_busy_s: float


@dataclass
class Model:
    """RCM-1 for one scenario, with what was computed before.

    Attributes:
        simulated: how many different pipelines were simulated.
        ladders, lines: kept for `control.planner.fit`.
    """

    scenario: Scenario
    simulated: int = 0
    ladders: dict[tuple[int, int, bool], Any] = field(default_factory=dict)
    lines: dict[tuple[object, ...], tuple[float, float]] = field(default_factory=dict)
    _times: dict[tuple[object, ...], Times] = field(default_factory=dict)
    _rings: dict[tuple[tuple[int, int], ...], tuple[Ring, ...]] = field(default_factory=dict)

    def costs(self, pipe: Pipe, setting: Setting) -> Costs:
        """Return what the parts of a pipeline take."""
        s, (fwd, _, _) = self.scenario, self.scenario.layers.sums
        b, forward, low = setting.micro_batch, [], 0
        cuts = []
        for kind, count in zip(pipe.kinds, pipe.layers, strict=True):
            figures = s.kinds[kind]
            work = float(fwd[low + count] - fwd[low])
            forward.append(count * figures.t0 + b * work / figures.flops)
            low += count
            cuts.append(low)
        factor = s.bwd_mult + (1 if setting.recompute else 0)
        places = setting.places(len(pipe.kinds))
        # From one stage of a node to its next, nothing is sent.
        message = [
            b * float(s.layers.out[cut - 1]) if places[at] != places[at + 1] else 0.0
            for at, cut in enumerate(cuts[:-1])
        ]
        hops = list(zip(pipe.kinds, pipe.kinds[1:], strict=False))
        return Costs(
            tuple(forward),
            tuple(factor * each for each in forward),
            tuple(_over(size, s.bw[i, j]) for size, (i, j) in zip(message, hops, strict=True)),
            tuple(float(s.lat[i, j]) for i, j in hops),
            tuple(_over(size, s.bw[j, i]) for size, (i, j) in zip(message, hops, strict=True)),
            tuple(float(s.lat[j, i]) for i, j in hops),
        )

    def times(self, pipe: Pipe, setting: Setting) -> Times:
        """Return when a pipeline and its stages end; infinite where a link is missing."""
        key = (*pipe[:3], *setting[:2], setting.recompute, setting.virtual)
        found = self._times.get(key)
        if found is None:
            self.simulated += 1
            costs = self.costs(pipe, setting)
            if math.inf in costs.down or math.inf in costs.up:
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
        return memory(self.scenario, pipe, setting, replicas)

    def fits(self, draft: Draft) -> bool:
        """Whether every stage fits into its node."""
        return all(
            need <= self.scenario.kinds[kind].mem
            for pipe in draft.pipes
            for kind, need in zip(
                pipe.kinds, self.memory(pipe, draft.setting, draft.replicas), strict=False
            )
        )

    def verdict(self, draft: Draft) -> Verdict:
        """Return what a draft takes, with the best order of each ring."""
        times = [self.times(pipe, draft.setting) for pipe in draft.pipes]
        ends = tuple(each.end for each in times)
        if draft.replicas == 1 or math.inf in ends:
            return Verdict(max(ends), ends, 0.0, 0.0)
        sync_end, busy = self._sync(draft, times)
        return Verdict(max(*ends, sync_end), ends, sync_end, busy)

    def _sync(self, draft: Draft, times: Sequence[Times]) -> tuple[float, float]:
        s, setting = self.scenario, draft.setting
        free = [[0.0] * len(pipe.kinds) for pipe in draft.pipes]
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
                    done = times[at].stage_ends[stage]
                    if s.overlap:
                        done -= self._still_to_run(draft.pipes[at], stage, bucket[0], setting)
                    ready = max(ready, done, free[at][places[at][stage]])
                takes = min(
                    self.all_reduce(bucket[1], draft.replicas, ring, setting) for ring in choice
                )
                end_here = ready + takes
                for at, stage in enumerate(segment.stages):
                    free[at][places[at][stage]] = end_here
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
        s, fwd = self.scenario, self.scenario.layers.sums[0]
        first = sum(pipe.layers[:stage])
        figures = s.kinds[pipe.kinds[stage]]
        work = float(fwd[layer] - fwd[first])
        forward = (layer - first) * figures.t0 + setting.micro_batch * work / figures.flops
        return forward * (s.bwd_mult + (1 if setting.recompute else 0))

    def all_reduce(self, size: float, replicas: int, ring: Ring, setting: Setting) -> float:
        """Return what a ring all-reduce of `size` bytes takes."""
        pieces = 1
        if setting.bucket is not None and not self.scenario.overlap:
            pieces = max(1, math.ceil(size / setting.bucket))
        hops = 2 * (replicas - 1)
        return pieces * hops * ring.lat + hops / replicas * size / ring.bw


class Segment(NamedTuple):
    """The half-open range of layers between two cuts of any pipeline, and which stage of each of
    the draft's pipes holds it.
    """

    first: int
    end: int
    stages: tuple[int, ...]


def segments(draft: Draft) -> list[Segment]:
    """Return the segments of a draft, from the last layer down."""
    bounds = []
    for pipe in draft.pipes:
        ends, at = [], 0
        for count in pipe.layers:
            at += count
            ends.append(at)
        bounds.append(ends)
    cuts = sorted({end for ends in bounds for end in ends})
    found = []
    stage = [0] * len(bounds)
    first = 0
    for end in cuts:
        found.append(Segment(first, end, tuple(stage)))
        for at, ends in enumerate(bounds):
            if ends[stage[at]] == end and stage[at] < len(ends) - 1:
                stage[at] += 1
        first = end
    return found[::-1]


def memory(scenario: Scenario, pipe: Pipe, setting: Setting, replicas: int) -> tuple[float, ...]:
    """Return the bytes that each place of a pipeline needs (RCM-1: 16 bytes per parameter, or
    4 + 12 / R where the optimizer's states are sharded).
    """
    layers = scenario.layers
    _, params, act = layers.sums
    per_param = 16.0 if setting.zero == 0 else 4 + 12 / replicas
    needs, low, last = [], 0, len(pipe.kinds)
    peaks = _peaks(pipe, setting) if setting.schedule not in {"1f1b", "gpipe"} else []
    for stage, count in enumerate(pipe.layers):
        end = low + count
        held = pipe.micro_batches
        if setting.schedule == "1f1b":
            held = min(held, last - stage)
        elif setting.schedule != "gpipe":
            held = peaks[stage]
        if setting.recompute:
            inputs = float(layers.out[max(low - 1, 0) : end - 1].sum())
            if low == 0:
                inputs += scenario.input_bytes
            kept = setting.micro_batch * (held * inputs + float(layers.act[low:end].max()))
        else:
            kept = held * setting.micro_batch * float(act[end] - act[low])
        needs.append(float(params[end] - params[low]) * per_param + kept + scenario.fixed)
        low = end
    if setting.virtual == 1:
        return tuple(needs)
    by_place = [0.0] * (last // setting.virtual)
    for stage, place in enumerate(setting.places(last)):
        by_place[place] += needs[stage] - scenario.fixed
    return tuple(each + scenario.fixed for each in by_place)


def _peaks(pipe: Pipe, setting: Setting) -> list[int]:
    """Return how many micro-batches each stage holds at most."""
    stages = len(pipe.kinds)
    ranks = stages // setting.virtual
    order = order_of(setting.schedule, ranks, setting.virtual, pipe.micro_batches)
    return simulate.in_flight_by_stage(order, stages)


def _over(size: float, bw: float) -> float:
    if bw > 0:
        return size / float(bw)
    return math.inf
