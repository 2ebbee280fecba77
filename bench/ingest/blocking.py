"""`python -m bench.ingest.blocking`: how long a rank's logging call keeps its step, in a process of
its own, as JSON.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import sys
import tempfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from bench.measured import steps
from bench.pace import flat_out, paced
from trainmaster.metrics import STEP_METRIC_NAMES
from trainmaster.orders import OrderWord
from trainmaster.spool import Header
from worker.gradients.reduce import Synchronisation
from worker.guard import Status
from worker.reporting.spoolfile import SpoolFile
from worker.reporting.telemetry import StepRecord, Telemetry

RECORDS = 1000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.ingest.blocking")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--dir", type=Path, help="where the spool lies; default: a temporary one")
    given = parser.parse_args()
    told: dict[str, object] = {}
    with tempfile.TemporaryDirectory(dir=given.dir) as folder:
        call = _logger(Path(folder) / "spool")
        durations, taken = flat_out(call, seconds=given.seconds)
        points = durations.calls * len(STEP_METRIC_NAMES)
        told["flat_out"] = {**durations.json(), "points_per_s": points / taken}
        told["computing"] = paced(call, seconds=given.seconds, computes=True).json()
        told["idle"] = paced(call, seconds=given.seconds, computes=False).json()
        _fill_disk()
        told["disk_full"] = paced(call, seconds=min(given.seconds, 3.0), computes=True).json()
    sys.stdout.write(json.dumps(told) + "\n")


def _logger(path: Path) -> Callable[[int], None]:
    spool = SpoolFile(path, Header("rbench/1/0", STEP_METRIC_NAMES))
    telemetry = Telemetry(spool, claimed_memory_bytes=None)
    records = [_record(step, values) for step, values in enumerate(islice(steps(), RECORDS))]

    def call(step: int) -> None:
        telemetry.record(records[step % RECORDS])

    return call


def _record(step: int, values: dict[str, float]) -> StepRecord:
    status = Status(
        loss=values["loss"],
        weight=values["tokens"],
        grad_norm=values["grad_norm"],
        replica_norms=(1.0, 1.0),
        non_finite=(0, 0),
        spans_s=(values["compute_s"], values["compute_s"]),
        order=(OrderWord.NONE, 0),
    )
    return StepRecord(
        step=step + 1,
        status=status,
        lr=values["lr"],
        step_time_s=values["step_time_s"],
        compute_s=values["compute_s"],
        p2p_wait_s=values["p2p_wait_s"],
        optimizer_s=values["optimizer_s"],
        data_s=values["data_s"],
        checkpoint_stall_s=0.0,
        checkpoint_failures=0,
        sync=Synchronisation(values["allreduce_s"], int(values["allreduce_bytes"])),
        replica=0,
        num_replicas=2,
    )


def _fill_disk() -> None:
    """Have the kernel refuse this process every further byte of a file."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


if __name__ == "__main__":
    main()
