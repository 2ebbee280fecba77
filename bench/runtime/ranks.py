"""Ranks of this runtime, forked on this machine without agent or control plane, and what they say
they did.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from trainmaster.ids import rank_stream
from trainmaster.metrics import STEP_METRIC_NAMES
from trainmaster.orders import Order
from trainmaster.plan import Plan
from trainmaster.spec import RunSpec
from trainmaster.spool import Header, decode
from trainmaster.wire import Assignment, RankAssignment
from worker.launch import Emulation, Inbox, Launch
from worker.reporting.spoolfile import SpoolFile
from worker.train import train

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["worker.train"])
WARM_UP_STEPS = 3
POLL_S = 0.05


@dataclass(frozen=True)
class Measured:
    """Of the steps after warm-up.

    Attributes:
        step_s: the median of rank 0's wall time.
        cpu_s: the mean of what all ranks together took of the processors; unlike wall time, hardly
            more where others use them too.
        peak_bytes: the largest resident set of a rank until then; no checkpoint is in it.
        metrics: medians of the mean over ranks; none of a bare script.
    """

    step_s: float
    cpu_s: float
    peak_bytes: int
    metrics: dict[str, float]


def run_ours(
    folder: Path, spec: RunSpec, plan: Plan, emulation: Mapping[int, Emulation] | None = None
) -> Measured:
    """Train `spec.train.steps` steps with this runtime."""
    wanted = spec.train.steps
    # More than are measured, so that the end can be ordered: without a checkpoint.
    spec = spec.model_copy(update={"train": spec.train.model_copy(update={"steps": 10**6})})
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    launches = launches_of(folder, spec, plan, store.port, emulation or {})
    told = [folder / f"told-{each.rank}.json" for each in launches]
    processes = start(
        _rank,
        [
            (each.model_dump_json(), str(path), wanted)
            for each, path in zip(launches, told, strict=True)
        ],
    )
    while not all(path.exists() for path in told) and all(each.is_alive() for each in processes):
        time.sleep(POLL_S)
    stop = Order(seq=1, kind="stop", args={"checkpoint": False})
    draft = folder / "inbox.json.new"
    draft.write_text(Inbox(orders=[stop]).model_dump_json())
    draft.replace(folder / "inbox.json")
    join(processes)
    rows = [_rows(each.spool) for each in launches]
    steps = sorted(rows[0])[WARM_UP_STEPS:wanted]
    figures = figures_of(told)
    metrics = {
        name: statistics.median(
            statistics.fmean(rank[step][name] for rank in rows) for step in steps
        )
        for name in STEP_METRIC_NAMES
    }
    return Measured(
        statistics.median(rows[0][step]["step_time_s"] for step in steps),
        figures.cpu_s,
        figures.peak_bytes,
        metrics,
    )


def launches_of(
    folder: Path, spec: RunSpec, plan: Plan, port: int, emulation: Mapping[int, Emulation]
) -> list[Launch]:
    """Return how each rank starts, in a new folder, with the store at `port` of this machine."""
    folder.mkdir(parents=True)
    assignment = Assignment(
        run="rbench",
        generation=1,
        world_size=plan.world_size,
        hosts_store=True,
        store=f"127.0.0.1:{port}",
        ranks=[RankAssignment(rank=rank, slot=rank) for rank in range(plan.world_size)],
        spec=spec,
        plan=plan,
        resume=None,
        checkpoint_every=10**9,
        checkpoint_root=(folder / "checkpoints").as_uri(),
    )
    (folder / "inbox.json").write_text(Inbox().model_dump_json())
    return [
        Launch(
            assignment=assignment,
            rank=rank,
            node="here",
            spool=folder / f"rank-{rank}.spool",
            inbox=folder / "inbox.json",
            emulation=emulation.get(rank, Emulation()),
        )
        for rank in range(plan.world_size)
    ]


@dataclass(frozen=True)
class Figures:
    """What one rank says of itself: see `Measured`."""

    cpu_s: float
    peak_bytes: int


def figures_of(told: list[Path]) -> Figures:
    """Return the processor time of all ranks together, and the largest peak among them."""
    each = [Figures(**json.loads(path.read_text())) for path in told]
    return Figures(sum(one.cpu_s for one in each), max(one.peak_bytes for one in each))


class Watch:
    """Takes the figures of a rank, which calls `step` after each of its steps."""

    def __init__(self, path: str, steps: int) -> None:
        self._path = path
        self._steps = steps
        self._done = 0
        self._began_s = 0.0

    def step(self) -> None:
        """Note that a step has been done; write the figures after the last one."""
        self._done += 1
        if self._done == WARM_UP_STEPS:
            self._began_s = time.process_time()
        if self._done == self._steps:
            cpu_s = (time.process_time() - self._began_s) / (self._steps - WARM_UP_STEPS)
            figures = Figures(cpu_s, peak_bytes())
            Path(self._path).write_text(json.dumps(asdict(figures)))


def start(
    target: Callable[..., None], arguments: list[tuple[Any, ...]]
) -> list[multiprocessing.process.BaseProcess]:
    """Run `target` in a process for each."""
    processes: list[multiprocessing.process.BaseProcess] = [
        FORKS.Process(target=target, args=each) for each in arguments
    ]
    for process in processes:
        process.start()
    return processes


def join(processes: list[multiprocessing.process.BaseProcess]) -> None:
    """Wait for all.

    Raises:
        RuntimeError: one failed.
    """
    for process in processes:
        process.join()
    codes = [process.exitcode for process in processes]
    if any(codes):
        raise RuntimeError(f"ranks ended with {codes}")


def in_parallel(target: Callable[..., None], arguments: list[tuple[Any, ...]]) -> list[int]:
    """Run `target` in a process for each, to the end; the last argument names a file into which it
    writes its peak memory. Return those.

    Raises:
        RuntimeError: one failed.
    """
    join(start(target, arguments))
    return [int(Path(each[-1]).read_text()) for each in arguments]


def peak_bytes() -> int:
    """Return the largest resident set of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def note_peak(path: str) -> None:
    """Write the largest resident set of this process so far, in bytes."""
    Path(path).write_text(str(peak_bytes()))


class _WatchedSpool(SpoolFile):
    """A spool that also tells a watch of each row, which is written right after its step."""

    def __init__(self, path: Path, header: Header, watch: Watch) -> None:
        super().__init__(path, header)
        self._watch = watch

    def row(self, *args: Any) -> None:
        super().row(*args)
        self._watch.step()


def _rank(launch_json: str, told: str, steps: int) -> None:
    launch = Launch.model_validate_json(launch_json)
    stream = rank_stream(launch.assignment.run, launch.assignment.generation, launch.rank)
    header = Header(stream, STEP_METRIC_NAMES)
    train(launch, _WatchedSpool(launch.spool, header, Watch(told, steps)))
    os._exit(0)


def _rows(spool: Path) -> dict[int, dict[str, float]]:
    frames = decode(spool.read_bytes(), offset=0, header=None)
    failed = [event for event in frames.events if event["kind"] == "rank_failed"]
    if failed:
        raise RuntimeError(json.dumps(failed[0], default=str))
    return {
        step: dict(zip(STEP_METRIC_NAMES, values, strict=True)) for step, _, values in frames.rows
    }
