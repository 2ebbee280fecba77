"""All ways to cut layers over a fixed order of nodes, judged at once by a lower bound.

The bound is below what the event simulation gives, and mostly close to it: each stage does all its
work, after the first micro-batch has come down to it, idle for as long as it must wait for the
stages after it, and before the last gradient has gone up from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import combinations

import numpy as np

from control.planner.scenario import Floats, Ints, Scenario
from control.planner.setting import Setting


@lru_cache(maxsize=64)
def all_cuts(num_layers: int, stages: int) -> Ints:
    """Return each way to give `num_layers` layers to `stages` stages, one way a row, as counts."""
    ways = list(combinations(range(1, num_layers), stages - 1))
    inner = np.array(ways, dtype=np.int64).reshape(len(ways), stages - 1)
    edges = np.hstack(
        [
            np.zeros((len(inner), 1), dtype=np.int64),
            inner,
            np.full((len(inner), 1), num_layers, dtype=np.int64),
        ]
    )
    return np.diff(edges, axis=1)


@dataclass(frozen=True)
class CutCosts:
    """What each of C cuts of one order of S nodes costs. Arrays are C x S, links C x (S - 1).

    Attributes:
        before: from the start until the first micro-batch is at a stage.
        after: from a stage's last backward to the end, at least.
        beyond: from a stage's forward of a micro-batch to its backward, at least.
        down, up: for which a message occupies its link.
    """

    counts: Ints
    forward: Floats
    backward: Floats
    before: Floats
    after: Floats
    beyond: Floats
    down: Floats
    up: Floats
    params: Floats
    kept: Floats
    once: Floats

    def only(self, rows: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> CutCosts:
        """Return some of the cuts."""
        return CutCosts(*(getattr(self, each.name)[rows] for each in fields(self)))


def cut_costs(
    scenario: Scenario, kinds: tuple[int, ...] | Ints, counts: Ints, setting: Setting
) -> CutCosts:
    """Return the costs of cutting the layers into `counts` over nodes of these kinds: the same for
    all cuts (S), or a row for each (C x S).
    """
    layers, order, b = scenario.layers, np.asarray(kinds), setting.micro_batch
    params, kept_of = layers.sums[1], scenario.kept[setting.recompute]
    ends = np.cumsum(counts, axis=1)
    lows = ends - counts
    seconds = scenario.seconds(b, setting.recompute)
    forward = seconds.forward[order, ends] - seconds.forward[order, lows]
    backward = seconds.backward[order, ends] - seconds.backward[order, lows]
    message = b * layers.out[ends[:, :-1] - 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        there, back = (order[..., :-1], order[..., 1:]), (order[..., 1:], order[..., :-1])
        down = np.where(scenario.bw[there] > 0, message / scenario.bw[there], np.inf)
        up = np.where(scenario.bw[back] > 0, message / scenario.bw[back], np.inf)
    hops_down, hops_up = down + scenario.lat[there], up + scenario.lat[back]
    zero = np.zeros((len(counts), 1))
    before = np.hstack([zero, np.cumsum(forward[:, :-1] + hops_down, axis=1)])
    after = np.hstack([zero, np.cumsum(backward[:, :-1] + hops_up, axis=1)])
    onward = forward[:, 1:] + backward[:, 1:] + hops_down + hops_up
    beyond = np.hstack([np.cumsum(onward[:, ::-1], axis=1)[:, ::-1], zero])
    kept, once = b * (kept_of[ends] - kept_of[lows]), np.zeros_like(forward)
    if setting.recompute != "none":
        once = b * _range_max(layers.act, lows, ends)
    return CutCosts(
        counts,
        forward,
        backward,
        before,
        after,
        beyond,
        down,
        up,
        params[ends] - params[lows],
        kept,
        once,
    )


def _range_max(values: Floats, lows: Ints, ends: Ints) -> Floats:
    if (values == values[0]).all():
        return np.full(lows.shape, values[0])
    size = len(values)
    table = np.full((size, size + 1), -np.inf)
    for low in range(size):
        table[low, low + 1 :] = np.maximum.accumulate(values[low:])
    return np.asarray(table[lows, ends])


def stage_end_bounds(costs: CutCosts, micro_batches: int, schedule: str) -> Floats:
    """Return when each stage has done its last backward, at the earliest (C x S)."""
    n, stages = micro_batches, costs.forward.shape[1]
    f, b, before, beyond = costs.forward, costs.backward, costs.before, costs.beyond
    if schedule == "gpipe":
        turned = before[:, -1:] + f[:, -1:] + (n - 1) * f.max(axis=1, keepdims=True)
        upward = costs.after[:, -1:] + b[:, -1:] - costs.after
        slowest = np.maximum.accumulate(b[:, ::-1], axis=1)[:, ::-1]
        return np.asarray(turned + upward + (n - 1) * slowest)
    ahead = np.minimum(n, stages - 1 - np.arange(stages))
    lead = np.where(n - ahead >= 1, ahead, n - 1)
    first, last = beyond - lead * f, beyond - lead * b
    apart = n - ahead >= 2
    idle = np.where(
        apart,
        np.maximum(first, 0) + np.maximum(last, 0),
        np.maximum(np.maximum(first, last), 0),
    )
    ends = before + n * (f + b) + idle
    # A forward beyond those ahead waits for a backward: at most so many are on their way.
    rounds = (n - 1) // (ahead + 1)
    trips = before + (rounds + 1) * (f + b + beyond) + (n - 1 - rounds * (ahead + 1)) * b
    ends = np.maximum(ends, trips)
    if stages > 1:
        slowest = np.maximum(costs.down, costs.up)
        on_links = (before + f + b + beyond)[:, :-1] + (n - 1) * slowest
        ends[:, :-1] = np.maximum(ends[:, :-1], on_links)
    for length in range(2, min(stages, _LONGEST_CIRCLE) + 1):
        _go_round(costs, n, length, ends)
    return np.asarray(ends)


_LONGEST_CIRCLE = 5


def _go_round(costs: CutCosts, n: int, length: int, ends: Floats) -> None:
    """Raise `ends` by what circles over `length` neighbouring stages allow.

    In the steady state of 1F1B a forward that goes down `length` stages meets a backward that comes
    up from there, `length` turns later; so turns are no shorter than the circle divided by its
    length, which is more than a stage's own work wherever messages take time.
    """
    stages = costs.forward.shape[1]
    first = np.arange(stages - length + 1)
    ahead = stages - 1 - first
    rest = n - ahead  # turns that have a forward
    use = rest >= 2
    if not use.any():
        return
    beyond, before = costs.beyond, costs.before
    # From the first stage's forward to its backward, less what lies beyond the last stage, is the
    # work of those between and the time on links.
    f, b = costs.forward[:, : len(first)], costs.backward[:, : len(first)]
    circle = f + b + beyond[:, : len(first)] - beyond[:, length - 1 :]
    last = np.maximum(beyond[:, : len(first)] - ahead * b, 0)
    cycles = np.maximum((rest - 2) // length, 0)
    left = rest - 1 - cycles * length
    ending = (
        before[:, : len(first)]
        + f
        + beyond[:, : len(first)]
        + b
        + cycles * circle
        + left * f
        + (left + ahead) * b
        + last
    )
    ends[:, : len(first)] = np.where(
        use, np.maximum(ends[:, : len(first)], ending), ends[:, : len(first)]
    )


def fitting(
    scenario: Scenario,
    kinds: tuple[int, ...] | Ints,
    costs: CutCosts,
    micro_batches: int,
    setting: Setting,
    replicas: int,
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which cuts fit into memory (C)."""
    stages = costs.forward.shape[1]
    states = scenario.states_of(setting.zero, offload=setting.offload)
    whole = states.whole * float(scenario.layers.params.max()) + scenario.fixed
    held = np.full(stages, micro_batches)
    if setting.schedule != "gpipe":
        held = np.minimum(held, stages - np.arange(stages))
    per_param = states.per_param(replicas)
    need = costs.params * per_param + (held * costs.kept + costs.once) + whole
    fits = need <= scenario.mem[np.asarray(kinds)]
    if states.on_host:
        on_host = costs.params * states.on_host / (replicas if setting.zero else 1)
        fits &= on_host <= scenario.host_mem[np.asarray(kinds)]
    return np.asarray(fits.all(axis=1))


FREE = (np.inf, 0.0)


def ring_limits(scenario: Scenario, blocks: Sequence[Sequence[int]]) -> tuple[float, float]:
    """Return (bytes/s, seconds) that no ring through one node of each block can beat: its node of
    each block has a link in and one out, to nodes of other blocks.
    """
    bw = np.where(scenario.bw > 0, scenario.bw, 0.0)
    lat = np.where(scenario.bw > 0, scenario.lat, np.inf)
    widest, nearest = np.inf, 0.0
    for at, block in enumerate(blocks):
        here = [kind for kind, count in enumerate(block) if count]
        there = sorted(
            {
                kind
                for to, other in enumerate(blocks)
                if to != at
                for kind, count in enumerate(other)
                if count
            }
        )
        if not there:
            return FREE
        out, back = np.ix_(here, there), np.ix_(there, here)
        widest = min(widest, float(np.minimum(bw[out].max(axis=1), bw[back].max(axis=0)).max()))
        nearest = max(nearest, float(np.maximum(lat[out].min(axis=1), lat[back].min(axis=0)).min()))
    return widest, nearest


def sync_tails(
    scenario: Scenario,
    kinds: tuple[int, ...] | Ints,
    params: Floats,
    setting: Setting,
    replicas: int,
    limits: tuple[float, float] = FREE,
) -> Floats:
    """Return how long after a stage's last backward its node is busy with sums at least (C x S);
    infinite where a node has no link to any other.

    Args:
        limits: bytes/s that no ring can have more of, and seconds that none can have less of.
    """
    s = scenario
    if replicas == 1:
        return np.zeros_like(params)
    fastest, nearest = (each[np.asarray(kinds)] for each in best_links(s))
    fastest, nearest = np.minimum(fastest, limits[0]), np.maximum(nearest, limits[1])
    hops = s.laps(setting.zero) * (replicas - 1)
    if not hops:
        return np.zeros_like(params)
    if s.overlap:
        # At least the sum over the lowest layer is still to come.
        return np.broadcast_to(np.where(fastest > 0, hops * nearest, np.inf), params.shape)
    size = s.grad_bytes * params
    pieces = np.ones_like(size)
    if None not in s.buckets:
        pieces = np.maximum(1.0, size / max(each for each in s.buckets if each is not None))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(
            fastest > 0, pieces * hops * nearest + hops / replicas * size / fastest, np.inf
        )


def best_links(scenario: Scenario) -> tuple[Floats, Floats]:
    """Return for each kind the highest bandwidth and the lowest latency that a ring through one of
    its nodes can have.
    """
    s = scenario
    others = ~np.eye(len(s.kinds), dtype=bool) | np.diag([count > 1 for count in s.counts])
    bw = np.where(others, s.bw, 0.0)
    lat = np.where(others & (s.bw > 0), s.lat, np.inf)
    return (
        np.minimum(bw.max(axis=0), bw.max(axis=1)),
        np.maximum(lat.min(axis=0), lat.min(axis=1)),
    )


def step_bounds(
    scenario: Scenario,
    kinds: tuple[int, ...] | Ints,
    costs: CutCosts,
    micro_batches: int,
    setting: Setting,
    replicas: int,
    limits: tuple[float, float] = FREE,
) -> Floats:
    """Return what a step takes at least in which this is one of the pipelines (C); infinite where a
    link is missing. `limits` as in `sync_tails`.
    """
    with np.errstate(invalid="ignore"):  # inf - inf, where a link is missing
        ends = stage_end_bounds(costs, micro_batches, setting.schedule)
        bounds = (ends + costs.after).max(axis=1)
        if replicas > 1:
            tails = sync_tails(scenario, kinds, costs.params, setting, replicas, limits)
            bounds = np.maximum(bounds, (ends + tails).max(axis=1))
    return np.where(np.isnan(bounds), np.inf, bounds)


def step_lines(
    scenario: Scenario,
    kinds: tuple[int, ...] | Ints,
    costs: CutCosts,
    near: int,
    setting: Setting,
    replicas: int,
) -> tuple[Floats, Floats]:
    """Return (a, c) such that a step takes about a + c * n with n micro-batches, near `near` of
    them (C each); a is infinite where a link is missing.
    """
    few, many = max(1, near - near // 8 - 1), max(2, near + near // 8 + 1)
    low, high = (
        step_bounds(scenario, kinds, costs, each, setting, replicas) for each in (few, many)
    )
    linked = np.isfinite(low) & np.isfinite(high)
    low, high = np.where(linked, low, 0.0), np.where(linked, high, 0.0)
    per = np.maximum((high - low) / (many - few), 1e-12)
    return np.where(linked, low - few * per, np.inf), per
