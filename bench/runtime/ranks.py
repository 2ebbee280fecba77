"""Ranks of this runtime, forked on this machine without agent or control plane, and what they say
they did.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from trainmaster.metrics import STEP_METRIC_NAMES
from trainmaster.plan import Plan
from trainmaster.spec import RunSpec
from trainmaster.spool import decode
from trainmaster.wire import Assignment, RankAssignment
from worker.launch import Emulation, Launch

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["worker.train"])
WARM_UP_STEPS = 3


@dataclass(frozen=True)
class Measured:
    """Medians over the steps after warm-up: of rank 0's wall time, and of any metric over all
    ranks' mean; the largest resident set of a rank.
    """

    step_s: float
    metrics: dict[str, float]
    peak_bytes: int


def run_ours(
    folder: Path, spec: RunSpec, plan: Plan, emulation: Mapping[int, Emulation] | None = None
) -> Measured:
    """Train with this runtime."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    launches = launches_of(folder, spec, plan, store.port, emulation or {})
    peaks = in_parallel(
        _rank, [(each.model_dump_json(), str(folder / f"peak-{each.rank}")) for each in launches]
    )
    rows = [_rows(each.spool) for each in launches]
    steps = sorted(rows[0])[WARM_UP_STEPS:]
    metrics = {
        name: statistics.median(
            statistics.fmean(rank[step][name] for rank in rows) for step in steps
        )
        for name in STEP_METRIC_NAMES
    }
    return Measured(
        statistics.median(rows[0][step]["step_time_s"] for step in steps), metrics, max(peaks)
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
    (folder / "inbox.json").write_text('{"orders": [], "drills": []}')
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


def in_parallel(target: Callable[..., None], arguments: list[tuple[Any, ...]]) -> list[int]:
    """Run `target` in a process for each; the last argument names a file into which it writes its
    peak memory. Return those.

    Raises:
        RuntimeError: one failed.
    """
    processes = [FORKS.Process(target=target, args=each) for each in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    codes = [process.exitcode for process in processes]
    if any(codes):
        raise RuntimeError(f"ranks ended with {codes}")
    return [int(Path(each[-1]).read_text()) for each in arguments]


def note_peak(path: str) -> None:
    """Write the largest resident set of this process so far, in bytes."""
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    Path(path).write_text(str(kib * 1024))


def _rank(launch: str, peak: str) -> None:
    from worker import train

    code = train.main(Launch.model_validate_json(launch))
    note_peak(peak)
    os._exit(code)


def _rows(spool: Path) -> dict[int, dict[str, float]]:
    frames = decode(spool.read_bytes(), offset=0, header=None)
    failed = [event for event in frames.events if event["kind"] == "rank_failed"]
    if failed:
        raise RuntimeError(json.dumps(failed[0], default=str))
    return {
        step: dict(zip(STEP_METRIC_NAMES, values, strict=True)) for step, _, values in frames.rows
    }
