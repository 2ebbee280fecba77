"""`python -m bench.runtime.monitoring`: what measuring costs a rank in each step. See
docs/bench.md.

Twice: each call timed by itself, between pieces of work that take the processor's caches as a step
does; and the wall time of a run whose steps are measured and not measured by turns.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.pipelining import schedules

from bench.conditions import conditions
from bench.runtime.ranks import in_parallel, launches_of, note_peak
from bench.spread import Spread
from bench.telling import tell
from trainmaster.layout import roles
from trainmaster.metrics import STEP_METRIC_NAMES
from trainmaster.plan import ParallelAsk, Plan
from trainmaster.pulse import Activity
from trainmaster.resolution import resolve
from trainmaster.spec import RunSpec
from trainmaster.spool import Header
from worker import groups, guard
from worker.assembly import assemble, course_of
from worker.emulation import Pace, Work
from worker.gradients.norms import Norms
from worker.gradients.reduce import Synchronisation
from worker.launch import Emulation, Launch
from worker.model.precision import LossScale
from worker.pipeline import timeline
from worker.reporting.meter import Meter
from worker.reporting.pulsefile import PulseFile
from worker.reporting.spoolfile import SpoolFile
from worker.reporting.telemetry import StepRecord, Telemetry
from worker.step import Stepper

MICRO_BATCHES: Final = 8
GOAL_US: Final = 500.0
"""Half a percent of a step of 100 ms."""
WARM_UP_PAIRS: Final = 5


def spec_of(steps: int) -> RunSpec:
    """A byte GPT whose steps take some 100 ms on two cores."""
    return RunSpec.model_validate(
        {
            "name": "bench",
            "workload": "worker.workloads.byte_gpt:workload",
            "params": {"layers": 4, "width": 128, "heads": 4, "context": 128},
            "data": {"source": "text:stdlib"},
            "train": {"steps": steps, "global_batch": 2 * MICRO_BATCHES},
        }
    )


def plan_of(spec: RunSpec) -> Plan:
    """Two stages, 1F1B."""
    ask = ParallelAsk.model_validate({"micro_batch": 2, "stages": 2})
    return resolve(ask, num_layers=spec.params["layers"], global_batch=spec.train.global_batch)


class Clocked:
    """Adds up what calls take. Written out: a generator would cost as much as what is measured."""

    def __init__(self) -> None:
        self.spent_s: dict[str, float] = {}
        self._what = ""
        self._began = 0.0

    def __call__(self, what: str) -> Clocked:
        self._what = what
        return self

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        ended = time.perf_counter()
        self.spent_s[self._what] = self.spent_s.get(self._what, 0.0) + ended - self._began


class _Arrived:
    """A message that is there."""

    def wait(self) -> None:
        pass


def accounted(folder: Path, repetitions: int) -> dict[str, Any]:
    """Return the microseconds of monitoring in a step of a rank in the middle of a pipeline: eight
    micro-batches forward and backward, before each of them a message sent and one awaited.
    """
    plan = plan_of(spec_of(1))
    role = roles(plan)[0]
    spool = SpoolFile(folder / "rank.spool", Header("bench/1/0", STEP_METRIC_NAMES))
    meter = Meter(Pace(Emulation()), spool.pulse)
    timeline.measure_messages(meter, {})
    telemetry = Telemetry(spool, claimed_memory_bytes=None)
    vector = guard.StatusVector(plan)
    matrix = torch.randn(384, 384)
    found: dict[str, list[float]] = {}
    for step in range(1, repetitions + 1):
        clock = Clocked()
        with clock("meter"):
            meter.begin(step, time.perf_counter(), records=False)
        for work in ("forward", "backward"):
            for micro_batch in range(MICRO_BATCHES):
                _message(clock, meter)
                _compute(clock, meter, work, micro_batch, matrix)
        with clock("pulse"):
            spool.pulse.turn_to(Activity.WAIT)
            spool.pulse.turn_to(Activity.OTHER)
        norms = Norms(dict.fromkeys(role.layers, 1.0), 0)
        losses = dict.fromkeys(range(MICRO_BATCHES), (1.0, 1.0))
        seen = guard.Contribution(losses, norms, norms, 0.1)
        with clock("guard"):
            status = vector.decode(vector.encode(seen, role))
        record = _record(step, status, meter)
        matrix @ matrix
        with clock("telemetry"):
            telemetry.record(record)
        for what, spent_s in clock.spent_s.items():
            found.setdefault(what, []).append(1e6 * spent_s)
    whole = [sum(each) for each in zip(*found.values(), strict=True)]
    kept = slice(repetitions // 10, None)
    return {
        "goal_us": GOAL_US,
        "whole_us": Spread.of(whole[kept]).json(),
        **{f"{what}_us": Spread.of(each[kept]).json() for what, each in found.items()},
    }


def _message(clock: Clocked, meter: Meter) -> None:
    with clock("messages"):
        started = time.perf_counter()
        meter.posted(started, time.perf_counter())
        schedules._wait_batch_p2p([_Arrived()])  # type: ignore[list-item]


def _compute(
    clock: Clocked, meter: Meter, work: Work, micro_batch: int, matrix: torch.Tensor
) -> None:
    with clock("meter"):
        measuring = meter.computing(work, 0, micro_batch, 2)
        measuring.__enter__()
    matrix @ matrix
    with clock("meter"):
        measuring.__exit__(None, None, None)


def _record(step: int, status: guard.Status, meter: Meter) -> StepRecord:
    return StepRecord(
        step=step,
        status=status,
        lr=1e-3,
        step_time_s=0.1,
        compute_s=meter.compute_s,
        p2p_wait_s=meter.p2p_wait_s,
        optimizer_s=1e-3,
        data_s=1e-4,
        checkpoint_stall_s=0.0,
        checkpoint_failures=0,
        sync=Synchronisation(0.0, 0),
        replica=0,
        num_replicas=1,
    )


class _Unmeasured(Meter):
    """Counts nothing."""

    def begin(self, step: int, origin: float, *, records: bool) -> None:
        pass

    def computing(  # type: ignore[override]
        self, work: Work, stage: int, micro_batch: int, num_layers: int
    ) -> AbstractContextManager[None]:
        return nullcontext()

    def note(self, *args: Any, **kwargs: Any) -> None:
        pass


class _Still(PulseFile):
    """Tells nothing."""

    def turn_to(self, activity: Activity) -> Activity:
        return activity

    def doing(self, activity: Activity) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


def paired(folder: Path, pairs: int) -> dict[str, Any]:
    """Return measured over unmeasured wall time of a run's steps, taken by turns."""
    spec = spec_of(2 * (pairs + WARM_UP_PAIRS))
    plan = plan_of(spec)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    launches = launches_of(folder, spec, plan, store.port, {})
    in_parallel(
        _by_turns,
        [(each.model_dump_json(), str(folder / f"peak-{each.rank}")) for each in launches],
    )
    seconds: list[float] = json.loads((folder / "steps.json").read_text())
    off, on = seconds[2 * WARM_UP_PAIRS :: 2], seconds[2 * WARM_UP_PAIRS + 1 :: 2]
    ratios = [one / other for one, other in zip(on, off, strict=True)]
    low, high = interval(ratios)
    return {
        "ratio": statistics.median(ratios),
        "interval_95": [low, high],
        "pairs": len(ratios),
        "measured_step_s": Spread.of(on).json(),
        "unmeasured_step_s": Spread.of(off).json(),
    }


def interval(values: list[float], resamples: int = 2000) -> tuple[float, float]:
    """Return the 95 % interval of the median, by resampling (Efron, 1979)."""
    draws = random.Random(0)
    medians = sorted(
        statistics.median(draws.choices(values, k=len(values))) for _ in range(resamples)
    )
    return medians[int(0.025 * resamples)], medians[int(0.975 * resamples)]


def _by_turns(launch_json: str, peak: str) -> None:
    torch.set_num_threads(1)
    launch = Launch.model_validate_json(launch_json)
    spool = SpoolFile(launch.spool, Header(f"bench/1/{launch.rank}", STEP_METRIC_NAMES))
    course = course_of(launch.assignment)
    parts = assemble(launch, spool, course)
    telemetry = Telemetry(spool, claimed_memory_bytes=None)
    stepper = Stepper(parts, course, applied_updates=0, loss_scale=LossScale.initial("fp32"))
    measured = schedules._batch_p2p, schedules._wait_batch_p2p
    torchs = timeline._post, timeline._await
    seconds = []
    for step in range(1, course.train.steps + 1):
        on = step % 2 == 0
        parts.meter.__class__ = Meter if on else _Unmeasured
        spool.pulse.__class__ = PulseFile if on else _Still
        schedules._batch_p2p, schedules._wait_batch_p2p = measured if on else torchs
        began = time.perf_counter()
        record = stepper.run(step, checkpoint_stall_s=0.0)
        if on:
            telemetry.record(record)
        seconds.append(time.perf_counter() - began)
    if launch.rank == 0:
        (launch.spool.parent / "steps.json").write_text(json.dumps(seconds))
    note_peak(peak)
    groups.leave(parts.groups)
    os._exit(0)


def main() -> None:
    """Measure, print JSON, and write it where asked."""
    parser = argparse.ArgumentParser(prog="python -m bench.runtime.monitoring", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=400)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        told = {
            "conditions": conditions(["torch"]),
            "accounted": accounted(Path(name), given.repetitions),
            "paired": paired(Path(name) / "paired", given.pairs),
        }
    tell(told, given.out)


if __name__ == "__main__":
    main()
