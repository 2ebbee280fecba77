"""RCM-1 a second time, as plainly as it can be written, and every plan of a small scenario: what
the planner is compared with. It shares no code with the planner.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations, pairwise, permutations
from typing import Any


def pipeline_ends(
    forward: list[float],
    backward: list[float],
    links: list[tuple[float, float, float, float]],
    n: int,
    schedule: str,
) -> list[float]:
    """Return when each stage has done its last backward, from a queue of events.

    `links` per cut: seconds down, latency down, seconds up, latency up.
    """
    stages = len(forward)
    lists = []
    for stage in range(stages):
        if schedule == "gpipe":
            work = [("F", each) for each in range(n)] + [("B", each) for each in range(n)]
        else:
            ahead = min(n, stages - 1 - stage)
            work = [("F", each) for each in range(ahead)]
            for each in range(n - ahead):
                work += [("F", ahead + each), ("B", each)]
            work += [("B", each) for each in range(n - ahead, n)]
        lists.append(work)
    here: set[tuple[int, str, int]] = {(0, "F", each) for each in range(n)}
    here |= {(stages - 1, "B", each) for each in range(n)}
    position, busy = [0] * stages, [False] * stages
    link_free: dict[tuple[int, str], float] = {}
    ends = [0.0] * stages
    events: list[tuple[float, int, str, int, str, int]] = []
    count = 0

    def start(stage: int, now: float) -> None:
        nonlocal count
        if busy[stage] or position[stage] == len(lists[stage]):
            return
        kind, each = lists[stage][position[stage]]
        if (stage, kind, each) in here:
            busy[stage] = True
            takes = forward[stage] if kind == "F" else backward[stage]
            count += 1
            heapq.heappush(events, (now + takes, count, "done", stage, kind, each))

    for stage in range(stages):
        start(stage, 0.0)
    while events:
        now, _, what, stage, kind, each = heapq.heappop(events)
        if what == "done":
            busy[stage] = False
            position[stage] += 1
            if kind == "B":
                ends[stage] = now
            target = stage + 1 if kind == "F" else stage - 1
            if 0 <= target < stages:
                down, down_lat, up, up_lat = links[min(stage, target)]
                takes, lat = (down, down_lat) if kind == "F" else (up, up_lat)
                sent = max(now, link_free.get((stage, kind), 0.0)) + takes
                link_free[(stage, kind)] = sent
                count += 1
                heapq.heappush(events, (sent + lat, count, "arrived", target, kind, each))
        else:
            here.add((stage, kind, each))
        start(stage, now)
    return ends


class Oracle:
    """All of RCM-1 for one scenario in plain values."""

    def __init__(self, scenario: dict[str, Any]) -> None:
        self.s = scenario
        self._ends = lru_cache(maxsize=None)(self._pipeline)
        self._ring = lru_cache(maxsize=None)(self._rings)

    def _pipeline(
        self, nodes: tuple[int, ...], layers: tuple[int, ...], n: int, b: int, how: tuple[Any, ...]
    ) -> tuple[float, ...]:
        schedule, recompute = how
        forward, backward, links, low = [], [], [], 0
        for stage, (node, count) in enumerate(zip(nodes, layers, strict=True)):
            figures = self.s["nodes"][node]
            own = self.s["layers"][low : low + count]
            takes = sum(
                figures.get("t0", 0.0) + b * layer["fwd"] / figures["flops"] for layer in own
            )
            forward.append(takes)
            backward.append((3 if recompute else 2) * takes)
            low += count
            if stage < len(nodes) - 1:
                size = b * own[-1]["out"]
                to = nodes[stage + 1]
                links.append(
                    (
                        size / self.s["bw"][node][to],
                        self.s["lat"][node][to],
                        size / self.s["bw"][to][node],
                        self.s["lat"][to][node],
                    )
                )
        return tuple(pipeline_ends(forward, backward, links, n, schedule))

    def _rings(self, group: tuple[int, ...]) -> list[tuple[float, float]]:
        found = []
        for rest in permutations(group[1:]):
            cycle = (group[0], *rest, group[0])
            hops = list(pairwise(cycle))
            found.append(
                (
                    max(self.s["lat"][i][j] for i, j in hops),
                    min(self.s["bw"][i][j] for i, j in hops),
                )
            )
        return found

    def step_time(self, plan: dict[str, Any]) -> float:
        """Return the seconds of a step under a plan, ignoring memory."""
        pipelines, b = plan["pipelines"], plan["micro_batch"]
        how = (plan["schedule"], plan["recompute"])
        ends = [
            self._ends(tuple(p["nodes"]), tuple(p["layers"]), p["micro_batches"], b, how)
            for p in pipelines
        ]
        last = max(max(each) for each in ends)
        replicas = len(pipelines)
        if replicas == 1:
            return last
        bounds = [[sum(p["layers"][:at]) for at in range(len(p["layers"]) + 1)] for p in pipelines]
        cuts = sorted({cut for each in bounds for cut in each})
        free: dict[tuple[int, int], float] = {}
        for low, end in reversed(list(pairwise(cuts))):
            holders = [
                next(at for at in range(len(each) - 1) if each[at] <= low < each[at + 1])
                for each in bounds
            ]
            keys = list(enumerate(holders))
            group = tuple(pipelines[r]["nodes"][stage] for r, stage in keys)
            for bottom, size in self._buckets(low, end, plan["bucket_bytes"]):
                ready = 0.0
                for r, stage in keys:
                    done = ends[r][stage]
                    if self.s.get("overlap"):
                        figures = self.s["nodes"][pipelines[r]["nodes"][stage]]
                        below = self.s["layers"][bounds[r][stage] : bottom]
                        done -= (3 if plan["recompute"] else 2) * sum(
                            figures.get("t0", 0.0) + b * layer["fwd"] / figures["flops"]
                            for layer in below
                        )
                    ready = max(ready, done, free.get((r, stage), 0.0))
                pieces = 1
                if plan["bucket_bytes"] and not self.s.get("overlap"):
                    pieces = math.ceil(size / plan["bucket_bytes"])
                takes = min(
                    pieces * 2 * (replicas - 1) * lat + 2 * (replicas - 1) / replicas * size / bw
                    for lat, bw in self._ring(group)
                )
                for key in keys:
                    free[key] = ready + takes
                last = max(last, ready + takes)
        return last

    def _buckets(self, low: int, end: int, bucket: float | None) -> list[tuple[int, float]]:
        sizes = [2 * layer["params"] for layer in self.s["layers"]]
        if not self.s.get("overlap"):
            return [(low, sum(sizes[low:end]))]
        found, size = [], 0.0
        for layer in reversed(range(low, end)):
            size += sizes[layer]
            if layer == low or (bucket is not None and size >= bucket):
                found.append((layer, size))
                size = 0.0
        return found

    def fits(self, plan: dict[str, Any]) -> bool:
        """Whether each stage of a plan fits into its node."""
        replicas, b = len(plan["pipelines"]), plan["micro_batch"]
        per_param = 16 if plan["zero"] == 0 else 4 + 12 / replicas
        for p in plan["pipelines"]:
            low, stages, n = 0, len(p["nodes"]), p["micro_batches"]
            for stage, (node, count) in enumerate(zip(p["nodes"], p["layers"], strict=True)):
                own = self.s["layers"][low : low + count]
                held = n if plan["schedule"] == "gpipe" else min(n, stages - stage)
                need = per_param * sum(layer["params"] for layer in own)
                if plan["recompute"]:
                    inputs = sum(
                        self.s["layers"][at - 1]["out"] if at else self.s.get("input_bytes", 0)
                        for at in range(low, low + count)
                    )
                    need += held * b * inputs + b * max(layer["act"] for layer in own)
                else:
                    need += held * b * sum(layer["act"] for layer in own)
                if need > self.s["nodes"][node]["mem"]:
                    return False
                low += count
        return True

    def optimum(self) -> tuple[float, dict[str, Any] | None]:
        """Return the best step time over every plan that fits, and a plan that has it."""
        best: tuple[float, dict[str, Any] | None] = (math.inf, None)
        for plan in self.plans():
            if self.fits(plan):
                takes = self.step_time(plan)
                if takes < best[0]:
                    best = takes, plan
        return best

    def plans(self) -> Iterator[dict[str, Any]]:
        """Return every plan."""
        s = self.s
        groupings = list(_groupings(tuple(range(len(s["nodes"]))), s.get("max_stages", 99)))
        num_layers = len(s["layers"])
        for b in s["micro_batch_choices"]:
            if s["global_batch"] % b:
                continue
            total = s["global_batch"] // b
            for group in groupings:
                if len(group) > total or any(len(each) > num_layers for each in group):
                    continue
                for cuts in _product([_splits(num_layers, len(each)) for each in group]):
                    for shares in _splits(total, len(group)):
                        for zero in s.get("zero_choices", [0]):
                            for recompute in s.get("recompute_choices", [False]):
                                for schedule in s.get("schedules", ["1f1b"]):
                                    for bucket in s.get("bucket_choices", [s.get("bucket_bytes")]):
                                        yield {
                                            "micro_batch": b,
                                            "schedule": schedule,
                                            "zero": zero,
                                            "recompute": recompute,
                                            "bucket_bytes": bucket,
                                            "pipelines": [
                                                {
                                                    "nodes": list(nodes),
                                                    "layers": list(layers),
                                                    "micro_batches": n,
                                                }
                                                for nodes, layers, n in zip(
                                                    group, cuts, shares, strict=True
                                                )
                                            ],
                                        }


def _splits(total: int, parts: int) -> list[tuple[int, ...]]:
    """Return each way to write `total` as `parts` positive numbers in order."""
    return [
        tuple(b - a for a, b in zip((0, *cuts), (*cuts, total), strict=True))
        for cuts in combinations(range(1, total), parts - 1)
    ]


def _product(lists: list[list[tuple[int, ...]]]) -> Iterator[tuple[tuple[int, ...], ...]]:
    if not lists:
        yield ()
        return
    for first in lists[0]:
        for rest in _product(lists[1:]):
            yield (first, *rest)


def _groupings(nodes: tuple[int, ...], most: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Return each set of disjoint ordered sequences of nodes that is not empty."""
    if not nodes:
        return
    first, rest = nodes[0], nodes[1:]
    yield from _groupings(rest, most)
    for size in range(min(len(rest), most - 1) + 1):
        for others in combinations(rest, size):
            left = tuple(each for each in rest if each not in others)
            for order in permutations((first, *others)):
                yield (order,)
                for more in _groupings(left, most):
                    yield (order, *more)
