"""A rank's sample row per step, written one step late so that nothing of the current step waits for
the file.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainmaster.metrics import STEP_METRIC_NAMES
from trainmaster.spool import MISSING
from worker.guard import Status
from worker.reduce import Synchronisation
from worker.spoolfile import SpoolFile

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What one rank measured of a step. All `_s` are seconds of wall time within the step."""

    step: int
    status: Status
    lr: float
    applied: bool
    step_time_s: float
    compute_s: float
    p2p_wait_s: float
    optimizer_s: float
    data_s: float
    checkpoint_stall_s: float
    sync: Synchronisation
    replica: int
    num_replicas: int


class Telemetry:
    """Writes sample rows. `flush` before anything that outlives this process: a commit, a pause,
    the end.
    """

    def __init__(self, spool: SpoolFile, *, claimed_memory_bytes: int | None) -> None:
        self._spool = spool
        self._claimed_memory_bytes = claimed_memory_bytes
        self._pending: tuple[int, float, list[float]] | None = None

    def record(self, record: StepRecord) -> None:
        """Write the previous row and keep this one."""
        ended_at = time.time()
        self.flush()
        values = row_of(record, memory_bytes(), self._memory_total())
        self._pending = (record.step, ended_at, values)

    def flush(self) -> None:
        """Write the row that is still kept."""
        if self._pending is not None:
            step, at, values = self._pending
            self._spool.row(step, at, values)
            self._pending = None

    def _memory_total(self) -> tuple[int, int]:
        """Return (used, total) bytes of the device, or of the node for a CPU rank."""
        if self._claimed_memory_bytes is not None:
            return memory_bytes(), self._claimed_memory_bytes
        return node_memory()


def row_of(record: StepRecord, used_by_rank: int, memory: tuple[int, int]) -> list[float]:
    """Return the values of `trainmaster.metrics.STEP_METRIC_NAMES`, in order."""
    status, sync = record.status, record.sync
    span_s = status.spans_s[record.replica]
    synchronised = record.num_replicas > 1 and sync.seconds > 0
    ring_bytes = 2 * (record.num_replicas - 1) / record.num_replicas * sync.num_bytes
    values = {
        "loss": status.loss,
        "grad_norm": status.grad_norm,
        "lr": record.lr,
        "applied": float(record.applied),
        "non_finite": float(sum(status.non_finite)),
        "tokens": status.weight,
        "step_time_s": record.step_time_s,
        "compute_s": record.compute_s,
        "p2p_wait_s": record.p2p_wait_s,
        "allreduce_s": sync.seconds,
        "allreduce_bytes": float(sync.num_bytes),
        "optimizer_s": record.optimizer_s,
        "data_s": record.data_s,
        "checkpoint_stall_s": record.checkpoint_stall_s,
        "bubble_ratio": max(0.0, 1.0 - record.compute_s / span_s) if span_s > 0 else MISSING,
        "utilization_ratio": min(1.0, record.compute_s / record.step_time_s),
        "memory_used_ratio": memory[0] / memory[1] if memory[1] else MISSING,
        "memory_bytes": float(used_by_rank),
        "latency_ms": sync.seconds * 1e3 if synchronised else MISSING,
        "bandwidth_bytes_per_s": ring_bytes / sync.seconds if synchronised else MISSING,
    }
    return [values[name] for name in STEP_METRIC_NAMES]


def memory_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


def node_memory() -> tuple[int, int]:
    """Return (used, total) bytes of this node's memory; what caches could give back is not used."""
    facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines()[:10])
    total, available = (int(facts[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    return total - available, total
