"""A rank that has its whole spool written before its agent sees any of it, for a real nest to fork.

The run's `params` say how many `steps`, and in which `folder` rank and bench meet: a rank makes
`written-RANK` there when its spool is complete, and shows it to its agent once `go` is there.
"""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path

from bench.measured import NAMES, steps
from trainmaster.ids import rank_stream
from trainmaster.metrics import STEP_METRIC_NAMES
from trainmaster.pulse import Section
from trainmaster.spool import Header
from trainmaster.wire import WorkloadInfo
from worker.launch import Launch
from worker.reporting.spoolfile import SpoolFile

BEAT_S = 0.25
STEP_S = 0.1


def main(launch: Launch) -> int:
    """Write the spool, show it, and live on until the agent ends this process."""
    assignment = launch.assignment
    params, rank = assignment.spec.params, launch.rank
    folder = Path(params["folder"])
    hidden = launch.spool.with_suffix(".hidden")
    stream = rank_stream(assignment.run, assignment.generation, rank)
    spool = SpoolFile(hidden, Header(stream, STEP_METRIC_NAMES))
    spool.event("rank_ready", step=0, pid=0)
    count = int(params["steps"])
    began = time.time() - STEP_S * count
    assert NAMES == STEP_METRIC_NAMES, "the bench logs what a rank logs"
    for step, values in enumerate(islice(steps(seed=rank), count), start=1):
        spool.row(step, began + STEP_S * step, list(values.values()))
    (folder / f"written-{rank}").touch()
    while not (folder / "go").exists():
        time.sleep(0.001)
    hidden.rename(launch.spool)
    while True:
        time.sleep(BEAT_S)
        spool.pulse.enter(Section.HELD)


def describe(workload: str, params: dict[str, object], data: str) -> WorkloadInfo:
    """Describe a workload of which only the shape is needed."""
    return WorkloadInfo(
        num_layers=8, num_parameters=1000, num_samples=1_000_000, code_sha256="0" * 64
    )
