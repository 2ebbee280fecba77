"""Formulas that people know, with what they mean. The planner simulates instead; these are what its
simulation must give in the plain cases, and what explanations speak of.

Units: seconds, bytes, FLOP. Letters as in the papers: p stages, m micro-batches, v stages per rank,
n ranks of a collective, a latency, beta bandwidth.
"""

from __future__ import annotations

import math


def bubble_overhead(stages: int, micro_batches: int, virtual: int = 1) -> float:
    """Return idle time over ideal time: (p-1)/(v m). It may exceed 1.

    Source: Narayanan et al., 2021, section 2.2.
    """
    return (stages - 1) / (virtual * micro_batches)


def bubble_share(stages: int, micro_batches: int, virtual: int = 1) -> float:
    """Return idle time over the whole time: (p-1)/(v m + p-1). It is below 1.

    Source: Huang et al., 2019, section 2.3, for v = 1.
    """
    return (stages - 1) / (virtual * micro_batches + stages - 1)


def even_makespan(stages: int, micro_batches: int, forward: float, backward: float) -> float:
    """Return the seconds of GPipe and of 1F1B on equal stages without links: (m+p-1)(tf+tb)."""
    return (micro_batches + stages - 1) * (forward + backward)


def zero_bubble_overhead_s(stages: int, forward: float, to_input: float, weights: float) -> float:
    """Return the idle seconds of ZB-H1 on equal stages: (p-1)(F+B-W).

    Source: Qi et al., 2023; DeepSeek's table writes B for both halves: (p-1)(F+B-2W).
    """
    return (stages - 1) * (forward + to_input - weights)


def dualpipe_bubble_s(stages: int, both: float, backward: float, weights: float) -> float:
    """Return the idle seconds of DualPipe: (p/2-1)(F&B + B - 3W), B both halves of a backward.

    Source: README of deepseek-ai/DualPipe.
    """
    return (stages / 2 - 1) * (both + backward - 3 * weights)


def ring_bytes(size: float, ranks: int) -> tuple[float, int]:
    """Return (bytes that each rank sends, messages in turn) of a ring all-reduce: 2(n-1)/n of the
    size, in 2(n-1) messages. Not (n-1)/n: that is reduce-scatter or all-gather alone.
    """
    return 2 * (ranks - 1) / ranks * size, 2 * (ranks - 1)


def ring_s(size: float, ranks: int, lat: float, bw: float) -> float:
    """Return the seconds of a ring all-reduce over equal links."""
    sent, messages = ring_bytes(size, ranks)
    return messages * lat + sent / bw


def tree_s(size: float, ranks: int, lat: float, bw: float) -> float:
    """Return the seconds of an all-reduce up and down a binary tree, not pipelined."""
    return 2 * math.ceil(math.log2(ranks)) * (lat + size / bw)


def crossover_bytes(lat: float, bw: float) -> float:
    """Return the message above which a link's bandwidth costs more than its latency."""
    return lat * bw


def synced_less_often(share: float, every: int) -> tuple[float, float]:
    """Return (share of communication, time per sample over before) where gradients are summed only
    every so many micro-steps, `share` having been communication's part of a step.
    """
    left = share / every
    whole = 1 - share + left
    return left / whole, whole


ADAM_BYTES = {
    "fp16": (4.0, 16.0),
    "bf16, fp32 gradients": (6.0, 12.0),
    "fp32": (8.0, 8.0),
}
"""Bytes per parameter of mixed-precision Adam as in Megatron's table: held by every rank, and what
a distributed optimizer shares out.
"""


def zero_bytes_per_param(level: int, replicas: int, *, kept: float = 12.0) -> float:
    """Return the bytes per parameter of mixed-precision Adam under ZeRO: 2 of weights, 2 of
    gradients, `kept` of optimizer state.

    Source: Rajbhandari et al., 2020, figure 1.
    """
    shared = {0: 0.0, 1: kept, 2: kept + 2, 3: kept + 4}[level]
    return 4 + kept - shared + shared / replicas


def zero_traffic(level: int, size: float, replicas: int, micro_batches: int = 1) -> float:
    """Return the bytes that each rank sends per step, `size` those of all gradients: ZeRO 0 and 1
    as much as an all-reduce; 2 sums after each micro-batch; 3 gathers weights for each forward and
    backward too.
    """
    half = (replicas - 1) / replicas * size
    match level:
        case 0 | 1:
            return 2 * half
        case 2:
            return (micro_batches + 1) * half
        case _:
            return 3 * micro_batches * half


def offloaded_zero2_bytes(params: float, ranks: int) -> tuple[float, float, float]:
    """Return what DeepSpeed's estimator gives for ZeRO 2 on one node: bytes per device, per device
    with the optimizer on the host, and on the host then.
    """
    return (
        params * (4 + 16 / ranks),
        params * 2.0,
        params * max(4 * ranks, 16) * 1.5,
    )


def transformer_params(layers: int, hidden: int, vocabulary: int, length: int) -> float:
    """Return the parameters of a GPT: 12 l h^2 (1 + 13/(12h) + (V+s)/(12 l h)).

    Source: Narayanan et al., 2021, equation 2.
    """
    l, h = layers, hidden  # noqa: E741
    return 12 * l * h * h * (1 + 13 / (12 * h) + (vocabulary + length) / (12 * l * h))


def transformer_flops(batch: int, length: int, layers: int, hidden: int, vocabulary: int) -> float:
    """Return the FLOP of an iteration with recompute: 96 B s l h^2 (1 + s/(6h) + V/(16 l h)).

    Source: Narayanan et al., 2021, equation 3.
    """
    l, h = layers, hidden  # noqa: E741
    return 96 * batch * length * l * h * h * (1 + length / (6 * h) + vocabulary / (16 * l * h))


def transformer_activations(
    length: int, batch: int, hidden: int, heads: int, *, with_core: bool = True
) -> float:
    """Return the bytes that a layer keeps in 2-byte numbers: s b h (34 + 5 a s / h); without the
    attention core, which selective recompute leaves out, 34 s b h.

    Source: Korthikanti et al., 2022.
    """
    core = 5 * heads * length / hidden if with_core else 0.0
    return length * batch * hidden * (34 + core)


def optimal_micro_batches_in_flight(workers: int, first_stage: int) -> int:
    """Return PipeDream's NOAM: ceil(workers / workers of the first stage)."""
    return math.ceil(workers / first_stage)


def scaled_lr(base_lr: float, base_batch: int, batch: int) -> float:
    """Return the linear rule's learning rate: base * B / B_base, to be warmed up to.

    Source: Goyal et al., 2017. A plan keeps the global batch, so it changes no learning rate.
    """
    return base_lr * batch / base_batch


def young_interval_s(stall_s: float, mtbf_s: float) -> float:
    """Return Young's interval between checkpoints: sqrt(2 C M), the first-order optimum."""
    return math.sqrt(2 * stall_s * mtbf_s)


def daly_interval_s(stall_s: float, mtbf_s: float) -> float:
    """Return Daly's interval of work between checkpoints: a higher order, the stall taken off.

    Source: Daly, 2006, equation 37; for C < 2 M, else M.
    """
    if stall_s >= 2 * mtbf_s:
        return mtbf_s
    x = stall_s / (2 * mtbf_s)
    return math.sqrt(2 * stall_s * mtbf_s) * (1 + math.sqrt(x) / 3 + x / 9) - stall_s


def checkpoint_overhead(
    interval_s: float, stall_s: float, mtbf_s: float, restart_s: float = 0.0
) -> float:
    """Return the time lost to checkpoints and failures, over useful time:
    M e^(R/M) (e^((tau+C)/M) - 1) / tau - 1.

    Source: Daly, 2006, equation 20. `mtbf_s` is of all nodes in use together: more nodes, more
    failures.
    """
    m = mtbf_s
    return m * math.exp(restart_s / m) * math.expm1((interval_s + stall_s) / m) / interval_s - 1


def cluster_mtbf_s(each_s: list[float]) -> float:
    """Return the mean time between failures of nodes that must all live: 1 / sum(1 / M)."""
    return 1 / sum(1 / mtbf for mtbf in each_s)


def goodput_samples_per_s(
    batch: int, step_s: float, *, stall_s: float, mtbf_s: float, restart_s: float = 0.0
) -> tuple[float, int]:
    """Return (useful samples/s, steps between checkpoints) with Daly's interval."""
    steps = max(1, round(daly_interval_s(stall_s, mtbf_s) / step_s))
    lost = checkpoint_overhead(steps * step_s, stall_s, mtbf_s, restart_s)
    return batch / step_s / (1 + lost), steps
