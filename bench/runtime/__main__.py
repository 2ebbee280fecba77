"""`python -m bench.runtime`: our step beside a bare script's, alternating; how much of the gradient
traffic shows with buckets of several sizes on plain and on slow links; what recomputing and ordered
sums cost. See docs/bench.md.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.conditions import conditions
from bench.runtime.bare import run_bare
from bench.runtime.ranks import Measured, run_ours
from bench.spread import Spread
from bench.telling import tell
from trainmaster.emulation import Link
from trainmaster.plan import ParallelAsk, Plan
from trainmaster.resolution import resolve
from trainmaster.spec import RunSpec
from worker.launch import Emulation

LAYOUTS: dict[str, dict[str, Any]] = {
    "2x2": {"replicas": 2, "stages": 2},
    "1x4": {"stages": 4},
}
SUMS = ("float64", "float32")
BUCKETS_MB = {"one parameter": 1e-6, "1 MB": 1.0, "25 MB": 25.0, "whole model (one bucket)": 4096.0}
ORDERED = {"determinism": "layout"}
GPIPE = {"stages": 2, "schedule": "gpipe"}
UNEVEN = {"replicas": 4, "shares": [5, 3, 4, 4]}
MODES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("2 replicas", "plain sums", {}, {"replicas": 2}),
    ("2 replicas", "ordered sums", ORDERED, {"replicas": 2}),
    ("4 replicas", "plain sums", {}, {"replicas": 4}),
    ("4 replicas", "ordered sums", ORDERED, {"replicas": 4}),
    ("4 replicas, uneven", "ordered sums", ORDERED, UNEVEN),
    ("2 stages, gpipe", "recompute none", {}, GPIPE),
    ("2 stages, gpipe", "recompute selective", {}, {**GPIPE, "recompute": "selective"}),
    ("2 stages, gpipe", "recompute full", {}, {**GPIPE, "recompute": "full"}),
]
LINKS = {"plain": None, "20 ms, 200 Mbit/s": Link(latency_ms=20, mbps=200)}


def spec_of(steps: int, layers: int, width: int) -> RunSpec:
    """A byte GPT on the standard library's sources."""
    return RunSpec.model_validate(
        {
            "name": "bench",
            "workload": "worker.workloads.byte_gpt:workload",
            "params": {"layers": layers, "width": width, "heads": 4, "context": 128},
            "data": {"source": "text:stdlib"},
            "train": {"steps": steps, "global_batch": 32, "optimizer": {"lr": 1e-3}},
        }
    )


def plan_of(spec: RunSpec, **ask: Any) -> Plan:
    """Micro-batches of two samples."""
    parallel = ParallelAsk.model_validate({"micro_batch": 2, **ask})
    return resolve(parallel, num_layers=spec.params["layers"], global_batch=spec.train.global_batch)


def speed(folder: Path, spec: RunSpec, repetitions: int) -> list[dict[str, Any]]:
    """Compare with the bare script, one after the other in turns that begin with another each."""
    told = []
    for name, ask in LAYOUTS.items():
        plan = plan_of(spec, **ask)
        found: dict[str, dict[str, list[float]]] = {sums: {} for sums in SUMS}
        for turn in range(repetitions):
            where = folder / f"{name}-{turn}"
            kinds = ["bare", *SUMS]
            seen = {
                kind: trained(where / kind, spec, plan, kind)
                for kind in kinds[turn % 3 :] + kinds[: turn % 3]
            }
            for sums in SUMS:
                figures = compared(seen[sums], seen["bare"])
                for figure, value in figures.items():
                    found[sums].setdefault(figure, []).append(value)
                print(f"... {name} {sums} {turn}: {figures}", file=sys.stderr)
        told += [
            {"layout": name, "sums": sums}
            | {figure: Spread.of(values).json() for figure, values in found[sums].items()}
            for sums in SUMS
        ]
    return told


def trained(folder: Path, spec: RunSpec, plan: Plan, kind: str) -> Measured:
    """Train with the bare script, or with this runtime and gradients summed in a dtype."""
    if kind == "bare":
        return run_bare(folder, spec, plan)
    train = spec.train.model_copy(update={"gradient_sums": kind})
    return run_ours(folder, spec.model_copy(update={"train": train}), plan)


def compared(ours: Measured, bare: Measured) -> dict[str, float]:
    """Ours beside the bare script: ratios above 1 are in our favour, but for memory."""
    return {
        "throughput_ratio": bare.step_s / ours.step_s,
        "cpu_ratio": bare.cpu_s / ours.cpu_s,
        "peak_memory_ratio": ours.peak_bytes / bare.peak_bytes,
        "our_step_s": ours.step_s,
        "bare_step_s": bare.step_s,
        "our_cpu_s": ours.cpu_s,
        "bare_cpu_s": bare.cpu_s,
    }


def modes(folder: Path, spec: RunSpec, repetitions: int) -> list[dict[str, Any]]:
    """Measure what recomputing and ordered sums cost, in turns with neither."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for turn in range(repetitions):
        for layout, mode, train, ask in MODES:
            asked = spec.model_dump(mode="json")
            asked["train"] |= train
            asked["parallel"] = {"micro_batch": 2, **ask}
            plan = plan_of(spec, **ask)
            where = folder / f"{layout}-{mode}-{turn}".replace(" ", "_")
            seen = run_ours(where, RunSpec.model_validate(asked), plan)
            figures = {
                "step_s": seen.step_s,
                "cpu_s": seen.cpu_s,
                "peak_mib": seen.peak_bytes / 2**20,
                "wire_mb": seen.metrics["allreduce_bytes"] / 1e6,
            }
            for figure, value in figures.items():
                found.setdefault((layout, mode), {}).setdefault(figure, []).append(value)
            print(f"... {layout} {mode} {turn}: {figures}", file=sys.stderr)
    return [
        {"layout": layout, "mode": mode}
        | {figure: Spread.of(values).json() for figure, values in figures.items()}
        for (layout, mode), figures in found.items()
    ]


def traffic(folder: Path, spec: RunSpec, repetitions: int) -> list[dict[str, Any]]:
    """Measure which share of a step shows gradients under way, and which hides them."""
    told = []
    for links, link in LINKS.items():
        for buckets, size in BUCKETS_MB.items():
            plan = plan_of(spec, replicas=2, bucket_mb=size)
            nodes = ("here", "there")
            placed = plan.model_copy(
                update={
                    "pipelines": tuple(
                        each.model_copy(update={"nodes": (node,)})
                        for each, node in zip(plan.pipelines, nodes, strict=True)
                    )
                }
            )
            emulation = {
                rank: Emulation(links={nodes[1 - rank]: link} if link else {}) for rank in (0, 1)
            }
            exposed, hidden, steps = [], [], []
            for turn in range(repetitions):
                where = folder / f"{links[:5]}-{buckets}-{turn}".replace(" ", "_")
                seen = run_ours(where, spec, placed, emulation)
                exposed.append(seen.metrics["allreduce_s"] / seen.step_s)
                hidden.append(seen.metrics["allreduce_hidden_s"] / seen.step_s)
                steps.append(seen.step_s)
            told.append(
                {
                    "links": links,
                    "buckets": buckets,
                    "exposed_share": Spread.of(exposed).json(),
                    "hidden_share": Spread.of(hidden).json(),
                    "step_s": Spread.of(steps).json(),
                }
            )
            print(f"... {told[-1]}", file=sys.stderr)
    return told


def main() -> None:
    """Measure, print JSON, and write it where asked."""
    parser = argparse.ArgumentParser(prog="python -m bench.runtime", description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--only", choices=["speed", "traffic", "modes"])
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    given = parser.parse_args()
    spec = spec_of(given.steps, given.layers, given.width)
    told: dict[str, Any] = {"conditions": conditions(["torch"]), "spec": spec.model_dump()}
    parts: dict[str, Callable[[Path, RunSpec, int], Any]]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = {"speed": speed, "traffic": traffic, "modes": modes}
        for part, measure in parts.items():
            if given.only in {None, part}:
                told[part] = measure(folder / part, spec, given.repetitions)
    told["load_after"] = conditions([])["load_average"]
    tell(told, given.out)


if __name__ == "__main__":
    main()
