"""What is logged in every bench: the metrics of a step, as a healthy run would have them.
Standard library only, so that each peer is given the very same numbers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

NAMES = (
    "loss",
    "grad_norm",
    "lr",
    "applied",
    "non_finite",
    "tokens",
    "step_time_s",
    "compute_s",
    "p2p_wait_s",
    "allreduce_s",
    "allreduce_bytes",
    "optimizer_s",
    "data_s",
    "checkpoint_stall_s",
    "checkpoint_failures",
    "bubble_ratio",
    "utilization_ratio",
    "memory_used_ratio",
    "memory_bytes",
    "latency_ms",
    "bandwidth_bytes_per_s",
    "allreduce_hidden_s",
    "exposed_comm_ratio",
    "idle_ratio",
)
NODE_BYTES = 64 << 30


def steps(seed: int = 0) -> Iterator[dict[str, float]]:
    """Yield the metrics of step after step without end; the same for the same seed."""
    noise = random.Random(seed)
    step, memory = 0, 6 << 30
    while True:
        step += 1
        step_time_s = 0.1 + noise.expovariate(500)
        compute_s = step_time_s * noise.uniform(0.93, 0.97)
        sync_s = noise.uniform(0.002, 0.003)
        memory += 4096 * noise.choice((0, 0, 0, 0, 0, 0, 0, 1))
        yield {
            "loss": 1.5 + 9.0 / (1 + step / 50) + noise.gauss(0, 0.02),
            "grad_norm": math.exp(noise.gauss(0, 0.1)),
            "lr": 3e-4 * 0.5 * (1 + math.cos(math.pi * (step % 100_000) / 100_000)),
            "applied": 1.0,
            "non_finite": 0.0,
            "tokens": 65_536.0,
            "step_time_s": step_time_s,
            "compute_s": compute_s,
            "p2p_wait_s": noise.uniform(0.0005, 0.001),
            "allreduce_s": sync_s,
            "allreduce_bytes": 33_554_432.0,
            "optimizer_s": noise.uniform(0.001, 0.0012),
            "data_s": noise.uniform(0.0001, 0.0002),
            "checkpoint_stall_s": 0.0 if step % 500 else noise.uniform(0.05, 0.2),
            "checkpoint_failures": 0.0,
            "bubble_ratio": 1 - compute_s / step_time_s,
            "utilization_ratio": compute_s / step_time_s,
            "memory_used_ratio": memory / NODE_BYTES,
            "memory_bytes": float(memory),
            "latency_ms": 1e3 * sync_s,
            "bandwidth_bytes_per_s": 33_554_432.0 / sync_s,
            "allreduce_hidden_s": 0.5 * sync_s,
            "exposed_comm_ratio": sync_s / step_time_s,
            "idle_ratio": noise.uniform(0.001, 0.002),
        }
