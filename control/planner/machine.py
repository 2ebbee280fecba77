"""A node as far as planning knows it: what it states of itself, and what it has measured.

Measured figures are never quite the same twice. Nodes and links that differ by no more than noise
are taken to be alike (`settled`): plans are sought over kinds of nodes, and noise would make each
node a kind of its own.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from control.planner.scenario import LayerTime
from trainmaster.emulation import stated_by

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
        memory_bytes_per_s: measured, of the device's memory.
        host_link_bytes_per_s: measured, from the host's memory to a device with its own.
        device: the kind of its devices.
        mtbf_s: between its failures, as stated.
        timed: what each layer of the workload takes, measured; empty where it was not.
        kept_bytes: what each layer keeps per sample, measured with them.
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
    memory_bytes_per_s: float | None = None
    host_link_bytes_per_s: float | None = None
    device: str = "cpu"
    mtbf_s: float | None = None
    timed: tuple[LayerTime, ...] = ()
    kept_bytes: tuple[float, ...] = ()
    doubts: tuple[str, ...] = ()


def machine_of(
    name: str,
    slots: int,
    profile: Mapping[str, Any],
    memory_bytes: int | None = None,
    *,
    precision: str = "fp32",
    device: str = "cpu",
    workload: str | None = None,
) -> Machine:
    """Return a node as planning knows it.

    Args:
        profile: what the node says of itself, and has measured, as it was stored.
        memory_bytes: of its smallest device, where it does not claim another size.
        precision: what it is to compute in.
        device: the kind of its devices.
        workload: the key of the workload whose layers' times are wanted (`workload_key`).
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
    stated, odd = stated_by(profile)
    if odd:
        doubts.append(f"what {name} states is left out of account: {odd}")
    return Machine(
        name,
        slots,
        stated.speed,
        stated.layer_time_s,
        stated.memory_bytes or memory_bytes,
        {str(peer): stated_link(link.latency_ms, link.mbps) for peer, link in stated.links.items()},
        None if flops is None else float(flops["value"]),
        {
            str(peer): (float(link["latency_s"]), float(link["bytes_per_s"]))
            for peer, link in (found.get("links") or {}).items()
        },
        _value(found, "memory_bytes_per_s"),
        _value(found, "to_device_bytes_per_s"),
        device,
        timed=_timed(found, workload) if precision == "fp32" else (),
        kept_bytes=tuple(float(each["kept_bytes"]) for each in _layers_in(found, workload)),
        doubts=tuple(doubts),
    )


def _layers_in(found: Mapping[str, Any], workload: str | None) -> list[Mapping[str, Any]]:
    figures = (found.get("workloads") or {}).get(workload) or {}
    layers: list[Mapping[str, Any]] = figures.get("layers", [])
    return layers


def _timed(found: Mapping[str, Any], workload: str | None) -> tuple[LayerTime, ...]:
    timed = tuple(
        LayerTime(*(float(layer[name]) for name in LayerTime._fields))
        for layer in _layers_in(found, workload)
    )
    # On a device of fixed times nothing is timed. A layer takes some time, or it could be anywhere.
    return timed if all(each.forward_s + each.forward_per_sample_s > 0 for each in timed) else ()


def _value(found: Mapping[str, Any], key: str) -> float | None:
    figure = found.get(key)
    return None if figure is None else float(figure["value"])


def stated_link(latency_ms: float, mbps: float | None) -> tuple[float, float | None]:
    """Return (latency in s, bytes/s) of a link as a cluster file states it."""
    return latency_ms / 1e3, None if mbps is None else float(mbps) * 1e6 / 8


def settled(machines: Sequence[Machine]) -> list[Machine]:
    """Return the machines with their measured figures rid of noise."""
    speeds = _levels((each.flops for each in machines if each.flops is not None), SPEED_NOISE)
    links = [link for each in machines for link in each.measured.values()]
    latencies = _levels((max(LEAST_LATENCY_S, latency) for latency, _ in links), LINK_NOISE)
    rates = _levels((rate for _, rate in links), LINK_NOISE)
    memories = [each.memory_bytes_per_s for each in machines if each.memory_bytes_per_s]
    copies = [each.host_link_bytes_per_s for each in machines if each.host_link_bytes_per_s]
    by_memory, by_copy = _levels(memories, LINK_NOISE), _levels(copies, LINK_NOISE)
    tables = _like_tables(machines)
    return [
        replace(
            each,
            timed=tables.get(each.timed, ()),
            flops=None if each.flops is None else speeds[each.flops],
            memory_bytes_per_s=by_memory.get(each.memory_bytes_per_s or 0.0),
            host_link_bytes_per_s=by_copy.get(each.host_link_bytes_per_s or 0.0),
            measured={
                peer: (latencies[max(LEAST_LATENCY_S, latency)], rates[rate])
                for peer, (latency, rate) in each.measured.items()
            },
        )
        for each in machines
    ]


def ablest(
    machines: Sequence[Machine], most: int | None, *, first: Collection[str] = ()
) -> list[Machine]:
    """Return the `most` machines, all where it is None, that compute most with all their slots, in
    the order that they were given in.

    Args:
        first: names of those that are taken before any other.
    """
    if most is None or len(machines) <= most:
        return list(machines)
    paces = _paces(settled(machines))
    order = sorted(
        range(len(machines)),
        key=lambda at: (machines[at].name not in first, -machines[at].slots * paces[at]),
    )
    return [machines[at] for at in sorted(order[:most])]


def _paces(machines: Sequence[Machine]) -> list[float]:
    """Return how fast a slot of each is, by the first figure that all of them have."""
    measured = [machine.flops or 0.0 for machine in machines]
    if all(measured):
        return measured
    stated = [machine.layer_time_s or 0.0 for machine in machines]
    if all(stated):
        return [1 / each for each in stated]
    return [machine.speed or 1.0 for machine in machines]


def _like_tables(
    machines: Sequence[Machine],
) -> dict[tuple[LayerTime, ...], tuple[LayerTime, ...]]:
    """Return layers' times -> their mean over those that are as fast in all."""
    totals = {each.timed: sum(map(sum, each.timed)) for each in machines if each.timed}
    levels = _levels(totals.values(), SPEED_NOISE)
    groups: dict[float, list[tuple[LayerTime, ...]]] = {}
    for timed, total in totals.items():
        groups.setdefault(levels[total], []).append(timed)
    means = {
        level: tuple(
            LayerTime(*(sum(figures) / len(figures) for figures in zip(*layer, strict=True)))
            for layer in zip(*group, strict=True)
        )
        for level, group in groups.items()
    }
    return {timed: means[levels[total]] for timed, total in totals.items()}


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
