"""`python -m tests.campaigns.planner`: plans for emulated clusters, predicted by the planner and
run by the real runtime. Prints a table of both; `--write` puts it, with a plot, into
docs/campaigns/planner.md. `--only` names clusters; `--keep FILE` remembers what was measured, and
clusters that stand there are not run again. Exit 1 where the limits below are not kept.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from control.planner.answer import asked_for
from control.planner.fleet import fleet_scenario, runnable
from control.planner.machine import Machine, stated_link
from control.planner.scenario import Scenario
from control.planner.search import search
from tests.distributed.ranks import tiny_spec, trained
from trainmaster.emulation import Link
from trainmaster.errors import SpecError
from trainmaster.layout import nodes_of
from trainmaster.plan import ParallelAsk, Plan
from trainmaster.resolution import resolve
from trainmaster.spec import RunSpec
from trainmaster.wire import WorkloadInfo
from worker.launch import Emulation

PAGE = Path(__file__).parents[2] / "docs" / "campaigns" / "planner.md"
MARK = "<!-- from here on as the campaign wrote it -->"
LAYERS, BATCH, MICRO_BATCH = 8, 48, 2
STEPS, WARM_STEPS = 5, 2  # as docs/campaigns/planner.md tells, with the sizes above
MEDIAN, P95, TAU, FASTER = 0.10, 0.20, 0.9, 1.5
EVEN, PLANNED = "even split", "planned"


@dataclass(frozen=True)
class Cluster:
    """Emulated nodes.

    Attributes:
        layer_ms: node -> milliseconds of a layer's forward of a micro-batch.
        links: (from, to) -> what a message costs.
        memory_bytes: node -> what it claims to have.
        mixed: whether a plan must beat the even split by `FASTER`.
    """

    name: str
    layer_ms: dict[str, float]
    links: dict[tuple[str, str], Link] = field(default_factory=dict)
    memory_bytes: dict[str, int] = field(default_factory=dict)
    mixed: bool = False

    def machines(self) -> list[Machine]:
        """The nodes as planning knows them."""
        return [
            Machine(
                node,
                layer_time_s=each / 1e3,
                memory_bytes=self.memory_bytes.get(node),
                links={
                    to: stated_link(link.latency_ms, link.mbps)
                    for (source, to), link in self.links.items()
                    if source == node
                },
            )
            for node, each in self.layer_ms.items()
        ]

    def emulation(self, node: str) -> Emulation:
        """The node as its ranks play it."""
        links = {to: link for (source, to), link in self.links.items() if source == node}
        return Emulation(layer_time_s=self.layer_ms[node] / 1e3, links=links)


def _between(one: Sequence[str], other: Sequence[str], link: Link) -> dict[tuple[str, str], Link]:
    pairs = [(a, b) for a in one for b in other]
    return dict.fromkeys([*pairs, *((b, a) for a, b in pairs)], link)


CLUSTERS = (
    Cluster("mixed speeds", {"a": 10.0, "b": 10.0, "c": 20.0, "d": 40.0}, mixed=True),
    Cluster(
        "a slow link one way",
        {"a": 10.0, "b": 10.0, "c": 15.0},
        {("a", "b"): Link(latency_ms=60, mbps=20)},
    ),
    Cluster(
        "a small-memory node",
        {"a": 10.0, "b": 10.0, "c": 30.0},
        memory_bytes={"a": 800_000, "b": 3_000_000, "c": 3_000_000},
        mixed=True,
    ),
    Cluster(
        "two sites",
        {"a": 10.0, "b": 20.0, "c": 10.0, "d": 20.0},
        _between(("a", "b"), ("c", "d"), Link(latency_ms=40, mbps=40)),
    ),
)


@dataclass(frozen=True)
class Outcome:
    """One plan: what was predicted, and the median of what its steps took."""

    cluster: Cluster
    name: str
    plan: Plan
    predicted_s: float
    measured_s: float
    fits: bool

    @property
    def error(self) -> float:
        """By how much the prediction is off, as a share of what was measured."""
        return self.predicted_s / self.measured_s - 1

    def to_json(self) -> dict[str, Any]:
        """Return it as it is kept."""
        return {
            "cluster": self.cluster.name,
            "name": self.name,
            "plan": self.plan.model_dump(mode="json"),
            "predicted_s": self.predicted_s,
            "measured_s": self.measured_s,
            "fits": self.fits,
        }

    @classmethod
    def of(cls, told: dict[str, Any]) -> Outcome:
        """Read it back."""
        cluster = next(each for each in CLUSTERS if each.name == told["cluster"])
        return cls(**{**told, "cluster": cluster, "plan": Plan.model_validate(told["plan"])})


def candidates(
    cluster: Cluster, spec: RunSpec, workload: WorkloadInfo
) -> Iterator[tuple[str, Plan, float, bool]]:
    """Yield (name, plan, seconds predicted, whether it fits) of each different plan."""
    scenario = fleet_scenario(cluster.machines(), spec, workload).replaced(
        micro_batches=(MICRO_BATCH,), schedules=("1f1b",)
    )
    names, seen = list(cluster.layer_ms), set()
    for name, found in _plans(scenario, spec, workload, names):
        shape = str([(each.nodes, each.layers, each.micro_batches) for each in found.pipelines])
        if shape in seen:
            continue
        seen.add(shape)
        try:
            yield name, found, asked_for(scenario, found).verdict.step_s, True
        except SpecError:
            # It runs here, where nobody holds emulated memory to its size.
            roomy = [
                Machine(each.name, layer_time_s=each.layer_time_s, links=each.links)
                for each in cluster.machines()
            ]
            wide = fleet_scenario(roomy, spec, workload)
            yield name, found, asked_for(wide, found).verdict.step_s, False


def _plans(
    scenario: Scenario, spec: RunSpec, workload: WorkloadInfo, names: list[str]
) -> Iterator[tuple[str, Plan]]:
    def asked(**ask: Any) -> Plan:
        parallel = ParallelAsk(micro_batch=MICRO_BATCH, **ask)
        return resolve(parallel, num_layers=workload.num_layers, global_batch=BATCH)

    yield PLANNED, runnable(search(scenario), spec, workload)
    yield EVEN, _placed(asked(replicas=len(names)), names)
    yield "even pipeline", _placed(asked(stages=len(names)), names)
    yield "pipeline, reversed", _placed(asked(stages=len(names)), names[::-1])
    for name, limits in (
        ("best of data parallel", {"max_stages": 1}),
        ("best pipeline", {"max_replicas": 1}),
    ):
        try:
            yield name, runnable(search(scenario.replaced(**limits)), spec, workload)
        except SpecError:
            continue  # none fits


def _placed(plan: Plan, names: Sequence[str]) -> Plan:
    left = iter(names)
    pipelines = tuple(
        each.model_copy(update={"nodes": tuple(next(left) for _ in each.layers)})
        for each in plan.pipelines
    )
    return plan.model_copy(update={"pipelines": pipelines})


def measured_s(folder: Path, cluster: Cluster, spec: RunSpec, plan: Plan) -> float:
    """Run a plan; return the median seconds of its steps after the first ones."""
    emulation = {rank: cluster.emulation(str(node)) for rank, node in enumerate(nodes_of(plan))}
    ranks = trained(folder, spec, plan, emulation=emulation)
    return statistics.median(ranks.series("step_time_s")[WARM_STEPS:])


def kendall_tau(pairs: Sequence[tuple[float, float]]) -> float:
    """Return by how much more pairs of pairs are in the same order than not, as a share."""
    agree = disagree = 0
    for at, (x, y) in enumerate(pairs):
        for u, v in pairs[:at]:
            sign = (x - u) * (y - v)
            agree += sign > 0
            disagree += sign < 0
    return (agree - disagree) / max(1, len(pairs) * (len(pairs) - 1) // 2)


def report(outcomes: Sequence[Outcome]) -> tuple[list[str], bool]:
    """Return the table with what follows from it, and whether the limits are kept."""
    lines = [
        "| cluster | plan | layers | micro-batches | predicted s | measured s | off by |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in outcomes:
        pipes = each.plan.pipelines
        layers = " ; ".join(
            f"{'-'.join(pipe.nodes)} {'-'.join(map(str, pipe.layers))}" for pipe in pipes
        )
        shares = " ".join(str(pipe.micro_batches) for pipe in pipes)
        name = each.name if each.fits else f"{each.name} (beyond the memory)"
        lines.append(
            f"| {each.cluster.name} | {name} | {layers} | {shares} | {each.predicted_s:.3f} "
            f"| {each.measured_s:.3f} | {each.error:+.1%} |"
        )
    errors = sorted(abs(each.error) for each in outcomes)
    middle = statistics.median(errors)
    high = errors[min(len(errors) - 1, int(0.95 * len(errors)))]
    tau = kendall_tau([(each.predicted_s, each.measured_s) for each in outcomes])
    good = middle <= MEDIAN and high <= P95 and tau >= TAU
    lines += [
        "",
        (
            f"{len(outcomes)} plans over {len({each.cluster.name for each in outcomes})} clusters: "
            f"median error {middle:.1%}, 95th percentile {high:.1%}, largest {errors[-1]:.1%}, "
            f"Kendall tau {tau:.3f}."
        ),
        "",
        *([] if tau >= TAU else [f"Not kept: Kendall tau is below {TAU}.", ""]),
        *([] if middle <= MEDIAN and high <= P95 else ["Not kept: the limits of errors.", ""]),
        "| cluster | even split s | planned s | times as fast |",
        "|---|---|---|---|",
    ]
    for cluster in dict.fromkeys(each.cluster.name for each in outcomes):
        here = {each.name: each for each in outcomes if each.cluster.name == cluster}
        even, planned = here.get(EVEN, here[PLANNED]), here[PLANNED]
        ratio = even.measured_s / planned.measured_s
        good = good and (ratio >= FASTER or not planned.cluster.mixed)
        lines.append(
            f"| {cluster} | {even.measured_s:.3f} | {planned.measured_s:.3f} | {ratio:.2f} |"
        )
    return lines, good


def plot(outcomes: Sequence[Outcome]) -> str:
    """Return predicted against measured as SVG, with the diagonal and a band of 10 %."""
    size, edge = 420, 48
    most = max(max(each.predicted_s, each.measured_s) for each in outcomes) * 1.08
    colours = ("#0b6e99", "#c4541d", "#4d7c0f", "#7e3f98")
    clusters = list(dict.fromkeys(each.cluster.name for each in outcomes))

    def x(seconds: float) -> float:
        return round(edge + seconds / most * (size - 2 * edge), 1)

    def y(seconds: float) -> float:
        return round(size - edge - seconds / most * (size - 2 * edge), 1)

    band = f"{x(0)},{y(0)} {x(most / 1.1)},{y(most)} {x(most)},{y(most)} {x(most)},{y(most * 0.9)}"
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size + 150} {size}" '
            'font-family="sans-serif" font-size="11">'
        ),
        f'<rect width="{size + 150}" height="{size}" fill="white"/>',
        f'<polygon points="{band}" fill="#eeeeee"/>',
        (
            f'<path d="M{x(0)} {y(most)} V{y(0)} H{x(most)} M{x(0)} {y(0)} L{x(most)} {y(most)}" '
            'stroke="#888888" fill="none"/>'
        ),
        f'<text x="{size / 2}" y="{size - 10}" text-anchor="middle">measured, seconds</text>',
        (
            f'<text x="14" y="{size / 2}" text-anchor="middle" '
            f'transform="rotate(-90 14 {size / 2})">predicted, seconds</text>'
        ),
    ]
    for tick in range(1, int(most) + 1):
        parts.append(f'<text x="{x(tick)}" y="{y(0) + 14}" text-anchor="middle">{tick}</text>')
        parts.append(f'<text x="{x(0) - 6}" y="{y(tick) + 4}" text-anchor="end">{tick}</text>')
    for each in outcomes:
        colour = colours[clusters.index(each.cluster.name) % len(colours)]
        parts.append(
            f'<circle cx="{x(each.measured_s)}" cy="{y(each.predicted_s)}" r="4" fill="{colour}">'
            f"<title>{each.cluster.name}: {each.name}</title></circle>"
        )
    for at, name in enumerate(clusters):
        colour = colours[at % len(colours)]
        parts.append(f'<circle cx="{size - 20}" cy="{60 + 18 * at}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{size - 10}" y="{64 + 18 * at}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], metavar="CLUSTER")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name} and its plot")
    parser.add_argument("--keep", type=Path, metavar="FILE")
    asked = parser.parse_args()
    chosen = [each for each in CLUSTERS if not asked.only or each.name in asked.only]
    kept: dict[str, list[Any]] = {"outcomes": [], "conditions": []}
    if asked.keep and asked.keep.is_file():
        kept = json.loads(asked.keep.read_text())
    have = {each["cluster"] for each in kept["outcomes"]}
    if not chosen or (asked.write and len({*have, *(c.name for c in chosen)}) < len(CLUSTERS)):
        parser.error(f"clusters: {', '.join(each.name for each in CLUSTERS)}; --write needs all")
    began, load = time.monotonic(), os.getloadavg()[0]
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="planner-") as made:
        corpus = Path(made) / "corpus.txt"
        corpus.write_text("All plans are wrong, some are in the right order. " * 400)
        params = {"layers": LAYERS, "width": 32, "heads": 2, "context": 16}
        spec = tiny_spec(corpus, steps=STEPS, global_batch=BATCH)
        spec = spec.model_copy(update={"params": params})
        workload = described(spec)
        for cluster in (each for each in chosen if each.name not in have):
            for name, plan, predicted, fits in candidates(cluster, spec, workload):
                folder = Path(made) / f"{len(outcomes)}"
                took = measured_s(folder, cluster, spec, plan)
                outcomes.append(Outcome(cluster, name, plan, predicted, took, fits))
                told = f"{cluster.name}: {name}: {predicted:.3f} s, measured {took:.3f} s"
                print(told, file=sys.stderr, flush=True)
    outcomes = [*map(Outcome.of, kept["outcomes"]), *outcomes]
    conditions = list(kept["conditions"])
    ran = [each.name for each in chosen if each.name not in have]
    if ran:
        conditions.append(
            f"{', '.join(ran)}: on {len(os.sched_getaffinity(0))} cores, load average {load:.1f} "
            f"as it began and {os.getloadavg()[0]:.1f} as it ended, "
            f"{time.monotonic() - began:.0f} s in all."
        )
    if asked.keep:
        told = {"outcomes": [each.to_json() for each in outcomes], "conditions": conditions}
        asked.keep.write_text(json.dumps(told))
    outcomes.sort(key=lambda each: CLUSTERS.index(each.cluster))
    lines, good = report(outcomes)
    print("\n".join(lines))
    if asked.write:
        told = PAGE.read_text().partition(MARK)[0]
        PAGE.write_text("\n".join([f"{told}{MARK}", "", *conditions, "", *lines, ""]))
        PAGE.with_suffix(".svg").write_text(plot(outcomes))
    return int(not good)


def described(spec: RunSpec) -> WorkloadInfo:
    """Describe the workload as a node would."""
    from worker.describe import describe

    return describe(spec.workload, spec.params, spec.data.source)


if __name__ == "__main__":
    sys.exit(main())
