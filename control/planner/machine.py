"""A node as far as planning knows it: what it states of itself, and what it has measured.

Measured figures are never quite the same twice. Nodes and links that differ by no more than noise
are taken to be alike (`settled`): plans are sought over kinds of nodes, and noise would make each
node a kind of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

SPEED_NOISE = 0.1
"""Nodes whose FLOP/s differ by no more are equally fast."""

LINK_NOISE = 0.5
"""The same of what links carry and how long a message needs."""

LEAST_LATENCY_S = 5e-5
"""Shorter latencies are not told from each other."""

UNSTEADY = 0.1
"""From so large a spread on a figure is told to be uncertain."""

BENT = 0.5
"""From so large a residual on a link is told not to be as the line says."""

OLD_S = 30 * 24 * 3600.0
"""From such an age on a calibration is told to be old."""

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True, slots=True)
class Machine:
    """A node, its slots alike.

    Attributes:
        speed: of its emulated device, as a share of the real one.
        layer_time_s: of its emulated device: seconds of a forward per layer and micro-batch.
        links: node -> (latency in s, bytes/s or None where nothing limits it), as stated.
        flops: measured FLOP/s of one slot, its emulated speed in it.
        measured: node -> (latency in s, bytes/s), as measured.
        doubts: what is to be said of its measurements, as clauses.
    """

    name: str
    slots: int = 1
    speed: float | None = None
    layer_time_s: float | None = None
    memory_bytes: int | None = None
    links: dict[str, tuple[float, float | None]] = field(default_factory=dict)
    flops: float | None = None
    measured: dict[str, tuple[float, float]] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()


def machine_of(
    name: str,
    slots: int,
    profile: Mapping[str, Any],
    memory_bytes: int | None = None,
    *,
    precision: str = "fp32",
) -> Machine:
    """Return a node as planning knows it.

    Args:
        profile: what the node says of itself, and has measured, as it was stored.
        memory_bytes: of its smallest device, where it does not claim another size.
        precision: what it is to compute in.
    """
    found = profile.get("calibration") or {}
    flops = (found.get("flops") or {}).get(DTYPES[precision])
    doubts = []
    if flops is not None and flops["spread"] >= UNSTEADY:
        doubts.append(f"the FLOP/s of {name} spread by {flops['spread']:.0%} as they were measured")
    bent = [
        str(peer)
        for peer, link in (found.get("links") or {}).items()
        if link.get("residual", 0.0) >= BENT
    ]
    if bent:
        doubts.append(f"no line fits what messages from {name} to {', '.join(bent)} took")
    if found and found["age_s"] > OLD_S:
        doubts.append(f"{name} was calibrated {found['age_s'] / 86400:.0f} days ago")
    return Machine(
        name,
        slots,
        profile.get("speed"),
        profile.get("layer_time_s"),
        profile.get("memory_bytes") or memory_bytes,
        {
            str(peer): stated_link(float(link.get("latency_ms") or 0.0), link.get("mbps"))
            for peer, link in (profile.get("links") or {}).items()
        },
        None if flops is None else float(flops["value"]),
        {
            str(peer): (float(link["latency_s"]), float(link["bytes_per_s"]))
            for peer, link in (found.get("links") or {}).items()
        },
        tuple(doubts),
    )


def stated_link(latency_ms: float, mbps: float | None) -> tuple[float, float | None]:
    """Return (latency in s, bytes/s) of a link as a cluster file states it."""
    return latency_ms / 1e3, None if mbps is None else float(mbps) * 1e6 / 8


def settled(machines: Sequence[Machine]) -> list[Machine]:
    """Return the machines with their measured figures rid of noise."""
    speeds = _levels((each.flops for each in machines if each.flops is not None), SPEED_NOISE)
    links = [link for each in machines for link in each.measured.values()]
    latencies = _levels((max(LEAST_LATENCY_S, latency) for latency, _ in links), LINK_NOISE)
    rates = _levels((rate for _, rate in links), LINK_NOISE)
    return [
        replace(
            each,
            flops=None if each.flops is None else speeds[each.flops],
            measured={
                peer: (latencies[max(LEAST_LATENCY_S, latency)], rates[rate])
                for peer, (latency, rate) in each.measured.items()
            },
        )
        for each in machines
    ]


def _levels(values: Iterable[float], noise: float) -> dict[float, float]:
    """Return value -> the geometric mean of those that it is not told from."""
    levels: dict[float, float] = {}
    group: list[float] = []

    def close() -> None:
        level = math.exp(sum(map(math.log, group)) / len(group))
        levels.update(dict.fromkeys(group, level))

    for value in sorted(values):
        if group and value > group[0] * (1 + noise):
            close()
            group = []
        group.append(value)
    if group:
        close()
    return levels
