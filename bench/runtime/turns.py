"""`python -m bench.runtime.turns`: our step and the bare script's by turns in the same processes.
See docs/bench.md.

Runs of their own (`python -m bench.runtime --only speed`) find the machine in different states;
here a few steps of one follow a few of the other, so that what else it does falls on both.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.pipelining import schedules

from bench.conditions import conditions
from bench.runtime.__main__ import LAYOUTS, SUMS, plan_of, spec_of
from bench.runtime.bare import bare_step
from bench.runtime.monitoring import interval
from bench.runtime.ranks import join, launches_of, start
from bench.spread import Spread
from bench.telling import tell
from trainmaster.metrics import STEP_METRIC_NAMES
from trainmaster.spec import RunSpec
from trainmaster.spool import Header
from worker import groups
from worker.assembly import assemble, course_of
from worker.launch import Launch
from worker.model.precision import LossScale
from worker.pipeline import timeline
from worker.reporting.spoolfile import SpoolFile
from worker.reporting.telemetry import Telemetry
from worker.step import Stepper

WARM_UP_TURNS: Final = 2
Turn = tuple[float, float]
"""(seconds, seconds of processor time) of some steps on one rank."""


def measure(folder: Path, spec: RunSpec, ask: dict[str, Any], turns: int, steps: int) -> Any:
    """Return ours beside the bare one: medians over the turns, with their 95 % intervals."""
    plan = plan_of(spec, **ask)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    launches = launches_of(folder, spec, plan, store.port, {})
    files = [folder / f"turns-{each.rank}.json" for each in launches]
    arguments = [
        (each.model_dump_json(), turns, steps, str(file))
        for each, file in zip(launches, files, strict=True)
    ]
    join(start(_rank, arguments))
    ranks: list[dict[str, list[Turn]]] = [json.loads(file.read_text()) for file in files]
    wall_s = {kind: [turn[0] for turn in ranks[0][kind]] for kind in ("ours", "bare")}
    cpu_s = {
        kind: [
            sum(turn[1] for turn in each) for each in zip(*(r[kind] for r in ranks), strict=True)
        ]
        for kind in ("ours", "bare")
    }
    return {
        "throughput": _compared(wall_s["ours"], wall_s["bare"]),
        "processor_time": _compared(cpu_s["ours"], cpu_s["bare"]),
        "our_step_s": Spread.of([each / steps for each in wall_s["ours"]]).json(),
        "bare_step_s": Spread.of([each / steps for each in wall_s["bare"]]).json(),
    }


def _compared(ours: list[float], bare: list[float]) -> dict[str, Any]:
    ratios = [b / o for o, b in zip(ours, bare, strict=True)]
    return {"ratio": statistics.median(ratios), "interval_95": interval(ratios)}


def _rank(launch_json: str, turns: int, steps: int, told: str) -> None:
    torch.set_num_threads(1)
    launch = Launch.model_validate_json(launch_json)
    spool = SpoolFile(launch.spool, Header(f"bench/1/{launch.rank}", STEP_METRIC_NAMES))
    parts = assemble(launch, spool, course := course_of(launch.assignment))
    telemetry = Telemetry(spool, claimed_memory_bytes=None)
    stepper = Stepper(parts, course, applied_updates=0, loss_scale=LossScale.initial("fp32"))
    measured = schedules._batch_p2p, schedules._wait_batch_p2p
    torchs = timeline._post, timeline._await
    bare = bare_step(launch.assignment.spec, launch.assignment.plan, launch.rank)

    def ours(step: int) -> None:
        telemetry.record(stepper.run(step + 1, checkpoint_stall_s=0.0))

    seen: dict[str, list[Turn]] = {"ours": [], "bare": []}
    for turn in range(turns + WARM_UP_TURNS):
        for kind in ("ours", "bare") if turn % 2 else ("bare", "ours"):
            hooks = measured if kind == "ours" else torchs
            schedules._batch_p2p, schedules._wait_batch_p2p = hooks
            stepper.begin_after_wait()
            taken = _timed(
                ours if kind == "ours" else bare, range(turn * steps, (turn + 1) * steps)
            )
            if turn >= WARM_UP_TURNS:
                seen[kind].append(taken)
    Path(told).write_text(json.dumps(seen))
    groups.leave(parts.groups)
    os._exit(0)


def _timed(run: Callable[[int], None], steps: range) -> Turn:
    """Run some steps, from when all ranks are there until all have done them."""
    dist.barrier()
    began, began_cpu = time.perf_counter(), time.process_time()
    for step in steps:
        run(step)
    dist.barrier()
    return time.perf_counter() - began, time.process_time() - began_cpu


def main() -> None:
    """Measure, print JSON, and write it where asked."""
    parser = argparse.ArgumentParser(prog="python -m bench.runtime.turns", description=__doc__)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--steps", type=int, default=4, help="of each in a turn")
    parser.add_argument("--layouts", nargs="+", choices=[*LAYOUTS, "1x1"], default=list(LAYOUTS))
    parser.add_argument("--sums", nargs="+", choices=SUMS, default=list(SUMS))
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    given = parser.parse_args()
    told: dict[str, Any] = {"conditions": conditions(["torch"])}
    with tempfile.TemporaryDirectory() as name:
        for layout in given.layouts:
            for sums in given.sums:
                spec = spec_of(10**6, 8, 128)
                train = spec.train.model_copy(update={"gradient_sums": sums})
                folder = Path(name) / f"{layout}-{sums}"
                asked = spec.model_copy(update={"train": train})
                ask = LAYOUTS.get(layout, {})
                told[f"{layout} {sums}"] = measure(folder, asked, ask, given.turns, given.steps)
    told["load_after"] = conditions([])["load_average"]
    tell(told, given.out)


if __name__ == "__main__":
    main()
