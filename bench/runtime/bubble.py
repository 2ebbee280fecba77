"""`python -m bench.runtime.bubble`: the bubble of emulated pipelines beside its formula, and where
the difference goes. See docs/timeline.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from bench.conditions import conditions
from bench.runtime.ranks import WARM_UP_STEPS, run_ours
from bench.spread import Spread
from trainmaster.layout import replica_ranks
from trainmaster.plan import ParallelAsk, Plan
from trainmaster.resolution import resolve
from trainmaster.spec import RunSpec
from trainmaster.spool import decode
from trainmaster.timeline import Timeline, ratios, span_of, waits
from trainmaster.timeline import decode as timeline_of
from worker.launch import Emulation

STAGES: Final = 4
MICRO_BATCHES: Final = 8
LAYERS: Final = 8
CASES: Final = {"1f1b": 1, "interleaved_1f1b": 2}
"""Schedules, with the stages of each rank."""


def formula(virtual: int) -> float:
    """Return (p - 1) / (v m + p - 1). Source: Narayanan et al., 2021, sections 2.2.1 and 2.2.2."""
    return (STAGES - 1) / (virtual * MICRO_BATCHES + STAGES - 1)


def measure(folder: Path, schedule: str, steps: int, layer_time_s: float) -> dict[str, Any]:
    """Train on four emulated devices, and read what they recorded."""
    spec = RunSpec.model_validate(
        {
            "name": "bubble",
            "workload": "worker.workloads.byte_gpt:workload",
            "params": {"layers": LAYERS, "width": 32, "heads": 2, "context": 32},
            "data": {"source": "text:stdlib"},
            "train": {"steps": WARM_UP_STEPS + steps, "global_batch": MICRO_BATCHES},
            "telemetry": {"timeline_every": 1},
        }
    )
    virtual = CASES[schedule]
    ask = {"micro_batch": 1, "stages": STAGES, "virtual": virtual, "schedule": schedule}
    plan = resolve(
        ParallelAsk.model_validate(ask), num_layers=LAYERS, global_batch=spec.train.global_batch
    )
    device = Emulation(layer_time_s=layer_time_s)
    run_ours(folder, spec, plan, dict.fromkeys(range(STAGES), device))
    return told(plan, recorded(folder, plan), formula(virtual))


def recorded(folder: Path, plan: Plan) -> list[list[Timeline]]:
    """Return the timelines of each step after warm-up, by rank."""
    ranks = []
    for rank in replica_ranks(plan, 0):
        frames = decode((folder / f"rank-{rank}.spool").read_bytes(), offset=0, header=None)
        ranks.append([timeline_of(each) for each in frames.timelines][WARM_UP_STEPS:])
    return [list(step) for step in zip(*ranks, strict=True)]


def told(plan: Plan, steps: list[list[Timeline]], expected: float) -> dict[str, Any]:
    """Return the bubble and its parts: medians over the steps, of means over the ranks."""
    bubbles, spans_s, unsent_s, under_way_s, handled_s = [], [], [], [], []
    for step in steps:
        span_ns = span_of(step)
        assert span_ns is not None, "each step has a pass"
        spans_s.append(span_ns / 1e9)
        bubbles.append(statistics.fmean(ratios(each, span_ns).bubble_ratio or 0 for each in step))
        waited = [waits(each, step) for each in step]
        unsent_s.append(statistics.fmean(each.unsent_s for each in waited))
        under_way_s.append(statistics.fmean(each.under_way_s for each in waited))
        handled_s.append(statistics.fmean(map(_handled_s, step)))
    bubble = Spread.of(bubbles)
    return {
        "schedule": plan.schedule,
        "formula": expected,
        "bubble_ratio": bubble.json(),
        "relative_difference": bubble.median / expected - 1,
        "span_s": Spread.of(spans_s).json(),
        "waited_unsent_s": Spread.of(unsent_s).json(),
        "waited_under_way_s": Spread.of(under_way_s).json(),
        "handled_messages_s": Spread.of(handled_s).json(),
    }


def _handled_s(timeline: Timeline) -> float:
    """Return the seconds in which a rank handed over messages and asked for them."""
    kinds = {"post", "send_activation", "send_gradient", "wait_send"}
    return sum(each.end_ns - each.start_ns for each in timeline.actions if each.kind in kinds) / 1e9


def main() -> None:
    """Measure, print JSON, and write it where asked."""
    parser = argparse.ArgumentParser(prog="python -m bench.runtime.bubble", description=__doc__)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--layer-time", type=float, nargs="+", default=[0.005, 0.02, 0.05])
    parser.add_argument("--schedules", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    given = parser.parse_args()
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        for schedule in given.schedules:
            for layer_time_s in given.layer_time:
                folder = Path(name) / f"{schedule}-{layer_time_s}"
                seen = measure(folder, schedule, given.steps, layer_time_s)
                found.append({"layer_time_s": layer_time_s, **seen})
                print(f"... {found[-1]}", file=sys.stderr)
    text = json.dumps({"conditions": conditions(["torch"]), "bubble": found}, indent=1)
    print(text)
    if given.out is not None:
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
