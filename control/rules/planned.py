"""What a plan and its nodes say beforehand of the values that rules look at. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from control.rules.derived import NOTHING_KNOWN, Known
from control.rules.members import Seat
from trainmaster.emulation import stated_by
from trainmaster.plan import Plan


def known_of(plan: Plan | None, seats: Iterable[Seat], profiles: Mapping[str, Any]) -> Known:
    """Return what is known of a run before its ranks tell anything.

    Args:
        profiles: node -> what it says of itself, and has measured.
    """
    if plan is None:
        return NOTHING_KNOWN
    return Known(planned_bubble(plan), slowest_ring_link(seats, profiles))


def planned_bubble(plan: Plan) -> float:
    """Return the share of the step in which a rank is idle by plan: as the planner predicts, or
    (p - 1) / (m v + p - 1) for p places, m micro-batches and v stages to a place.
    """
    if plan.predicted.bubble_ratio is not None:
        return plan.predicted.bubble_ratio
    shares = []
    for pipeline in plan.pipelines:
        idle = max(len(pipeline.layers) // plan.virtual, 1) - 1
        shares.append(idle / (pipeline.micro_batches * plan.virtual + idle))
    return sum(shares) / len(shares)


def slowest_ring_link(seats: Iterable[Seat], profiles: Mapping[str, Any]) -> float | None:
    """Return how many bytes a second the slowest link carries that sums of gradients cross; None
    where the capacity of none is known.

    A ring moves as much over each of its links, so the slowest is the fullest. The copies of a
    stage form the ring, in the order of their replicas; within a node there is no link.
    """
    rings: dict[int, list[Seat]] = {}
    for seat in seats:
        rings.setdefault(seat.stage, []).append(seat)
    capacities = []
    for ring in rings.values():
        nodes = [seat.node for seat in sorted(ring, key=lambda seat: seat.replica)]
        for source, target in zip(nodes, [*nodes[1:], *nodes[:1]], strict=True):
            if source and target and source != target:
                capacities.append(_capacity(profiles.get(source) or {}, target))
    return min((each for each in capacities if each is not None), default=None)


def _capacity(profile: Mapping[str, Any], target: str) -> float | None:
    """Return what a node measured of its link to another, or else what it states, in bytes/s."""
    measured = (profile.get("calibration") or {}).get("links") or {}
    if target in measured:
        return float(measured[target]["bytes_per_s"])
    link = stated_by(profile)[0].links.get(target)
    return None if link is None or link.mbps is None else link.mbps * 1e6 / 8
