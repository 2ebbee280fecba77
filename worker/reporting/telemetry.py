"""A rank's sample row per step, written one step late so that nothing of the current step waits for
the file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from trainmaster.spool import MISSING
from worker.gradients.reduce import Synchronisation
from worker.guard import Status
from worker.late import LateStatus
from worker.reporting.spoolfile import SpoolFile

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
MEMORY_EVERY_S: Final = 1.0
"""How old the memory that a row tells may be: asking the kernel costs several times what the rest
of a row does.
"""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What one rank measured of a step. All `_s` are seconds of wall time within the step."""

    step: int
    status: Status | LateStatus
    lr: float
    step_time_s: float
    compute_s: float
    p2p_wait_s: float
    optimizer_s: float
    data_s: float
    checkpoint_stall_s: float
    checkpoint_failures: int
    sync: Synchronisation
    replica: int
    num_replicas: int
    share_s: float = 0.0
    """Of `optimizer_s`: giving the other replicas what was updated."""
    status_s: float = 0.0
    """Summing the status over all ranks."""

    @property
    def exposed_s(self) -> float:
        """In which the rank did nothing but communicate."""
        return self.p2p_wait_s + self.sync.seconds + self.share_s + self.status_s

    @property
    def busy_s(self) -> float:
        """In which it computed."""
        return self.compute_s + self.optimizer_s - self.share_s


@dataclass(frozen=True, slots=True)
class Memory:
    """What a rank, and the device or node that it runs on, use; bytes."""

    used_by_rank: int
    used: int
    total: int


class MemoryMeter:
    """Knows the memory of this process and of its node, `MEMORY_EVERY_S` old at most. Made by the
    process that it measures.

    Args:
        claimed_bytes: what the rank's device is said to have; None for a CPU rank, which has what
            its node has.
        of_device: tells (held by this rank, in use, in all) of a device with memory of its own.
    """

    def __init__(
        self, claimed_bytes: int | None, of_device: Callable[[], tuple[int, int, int]] | None = None
    ) -> None:
        self._of_device = of_device
        self._claimed_bytes = claimed_bytes
        self._process = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        self._node = os.open("/proc/meminfo", os.O_RDONLY | os.O_CLOEXEC)
        self._due = 0.0
        self._last = Memory(0, 0, 0)

    def at(self, now: float) -> Memory:
        """Return the memory at about `now`, on the monotonic clock."""
        if now >= self._due:
            self._due = now + MEMORY_EVERY_S
            self._last = self.read()
        return self._last

    def read(self) -> Memory:
        """Ask the kernel, or the device."""
        if self._of_device is not None:
            return Memory(*self._of_device())
        own = int(os.pread(self._process, 128, 0).split()[1]) * _PAGE_BYTES
        if self._claimed_bytes is not None:
            return Memory(own, own, self._claimed_bytes)
        return Memory(own, *node_memory(os.pread(self._node, 256, 0)))

    def close(self) -> None:
        """Close what it reads from."""
        os.close(self._process)
        os.close(self._node)


def node_memory(meminfo: bytes) -> tuple[int, int]:
    """Return (used, total) bytes as /proc/meminfo tells in its first lines; what caches could give
    back is not used.
    """
    facts = dict(line.split(b":", 1) for line in meminfo.splitlines()[:3])
    total, available = (
        int(facts[name].split()[0]) * 1024 for name in (b"MemTotal", b"MemAvailable")
    )
    return total - available, total


class Telemetry:
    """Writes sample rows. `flush` before anything that outlives this process: a commit, a pause,
    the end.
    """

    def __init__(
        self,
        spool: SpoolFile,
        *,
        claimed_memory_bytes: int | None,
        device_memory: Callable[[], tuple[int, int, int]] | None = None,
    ) -> None:
        self._spool = spool
        self._memory = MemoryMeter(claimed_memory_bytes, device_memory)
        self._pending: tuple[StepRecord, float, Memory] | None = None

    def record(self, record: StepRecord) -> None:
        """Write the previous row and keep this one."""
        ended_at = time.time()
        self.flush()
        self._pending = record, ended_at, self._memory.at(time.monotonic())

    def flush(self) -> None:
        """Write the row that is still kept."""
        if self._pending is not None:
            record, ended_at, memory = self._pending
            self._pending = None
            self._spool.row(record.step, ended_at, row_of(record, memory))


def row_of(record: StepRecord, memory: Memory) -> list[float]:
    """Return the values of `trainmaster.metrics.STEP_METRIC_NAMES`, in order."""
    return list(values_of(record, memory).values())


def values_of(record: StepRecord, memory: Memory) -> dict[str, float]:
    """Return the metrics of a step by name, in the order of
    `trainmaster.metrics.STEP_METRIC_NAMES`.
    """
    told, sync = record.status, record.sync
    status = told.read() if isinstance(told, LateStatus) else told
    span_s, whole_s = status.spans_s[record.replica], sync.whole_s
    synchronised = record.num_replicas > 1 and whole_s > 0
    return {
        "loss": status.loss,
        "grad_norm": status.grad_norm,
        "lr": record.lr,
        "applied": float(status.because is None),
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
        "checkpoint_failures": float(record.checkpoint_failures),
        "bubble_ratio": max(0.0, 1.0 - record.compute_s / span_s) if span_s > 0 else MISSING,
        "utilization_ratio": min(1.0, record.compute_s / record.step_time_s),
        "memory_used_ratio": memory.used / memory.total if memory.total else MISSING,
        "memory_bytes": float(memory.used_by_rank),
        "latency_ms": whole_s * 1e3 if synchronised else MISSING,
        "bandwidth_bytes_per_s": sync.moved_bytes / whole_s if synchronised else MISSING,
        "allreduce_hidden_s": sync.hidden_s,
        "exposed_comm_ratio": min(1.0, record.exposed_s / record.step_time_s),
        "idle_ratio": max(0.0, 1.0 - (record.busy_s + record.exposed_s) / record.step_time_s),
    }
