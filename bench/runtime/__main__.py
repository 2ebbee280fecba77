"""`python -m bench.runtime`: our step beside a bare script's, alternating, and how much of the
gradient traffic shows with buckets of several sizes on plain and on slow links. See docs/bench.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.conditions import conditions
from bench.runtime.bare import run_bare
from bench.runtime.ranks import run_ours
from bench.spread import Spread
from trainmaster.emulation import Link
from trainmaster.plan import ParallelAsk, Plan, resolve
from trainmaster.spec import RunSpec
from worker.launch import Emulation

LAYOUTS: dict[str, dict[str, Any]] = {
    "2x2": {"replicas": 2, "stages": 2},
    "1x4": {"stages": 4},
}
BUCKETS_MB = {"1 MB": 1.0, "25 MB": 25.0, "whole model": 4096.0}
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


def speed(folder: Path, spec: RunSpec, repetitions: int) -> dict[str, Any]:
    """Compare with the bare script, one after the other in turns."""
    told = {}
    for name, ask in LAYOUTS.items():
        plan = plan_of(spec, **ask)
        ratios, ours_s, bare_s, memory = [], [], [], []
        for turn in range(repetitions):
            ours = run_ours(folder / f"{name}-ours-{turn}", spec, plan)
            seconds, peak = run_bare(folder / f"{name}-bare-{turn}", spec, plan)
            ours_s.append(ours.step_s)
            bare_s.append(seconds)
            ratios.append(seconds / ours.step_s)
            memory.append(ours.peak_bytes / peak)
            print(f"... {name} {turn}: {ours.step_s:.4f} s, bare {seconds:.4f} s", file=sys.stderr)
        told[name] = {
            "throughput_ratio": Spread.of(ratios).json(),
            "our_step_s": Spread.of(ours_s).json(),
            "bare_step_s": Spread.of(bare_s).json(),
            "peak_memory_ratio": Spread.of(memory).json(),
        }
    return told


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
    parser.add_argument("--only", choices=["speed", "traffic"])
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    given = parser.parse_args()
    spec = spec_of(given.steps, given.layers, given.width)
    told: dict[str, Any] = {"conditions": conditions(["torch"]), "spec": spec.model_dump()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if given.only != "traffic":
            told["speed"] = speed(folder, spec, given.repetitions)
        if given.only != "speed":
            told["traffic"] = traffic(folder, spec, given.repetitions)
    text = json.dumps(told, indent=1)
    print(text)
    if given.out is not None:
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
