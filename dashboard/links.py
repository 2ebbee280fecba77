"""Links between nodes as a matrix: what was measured of each, else what its nodes say. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dashboard.data import Json


@dataclass(frozen=True, slots=True)
class Links:
    """Directed links between nodes.

    Attributes:
        nodes: in the order of rows (from) and columns (to) [N].
        latency_ms: [N, N]; NaN where nothing is known.
        mbps: in 10^6 bits a second [N, N]; NaN where nothing is known.
    """

    nodes: tuple[str, ...]
    latency_ms: NDArray[np.float64]
    mbps: NDArray[np.float64]


def links_of(nodes: Sequence[Json]) -> Links | None:
    """Return the links that are known; None where none is."""
    names = tuple(str(node["id"]) for node in nodes)
    place = {name: index for index, name in enumerate(names)}
    latency_ms = np.full((len(names), len(names)), np.nan)
    mbps = np.full((len(names), len(names)), np.nan)
    for row, node in enumerate(nodes):
        profile = node.get("profile") or {}
        for peer, stated in (profile.get("links") or {}).items():
            if peer in place:
                latency_ms[row, place[peer]] = _number(stated.get("latency_ms"))
                mbps[row, place[peer]] = _number(stated.get("mbps"))
        measured = (profile.get("calibration") or {}).get("links") or {}
        for peer, found in measured.items():
            if peer in place:
                latency_ms[row, place[peer]] = _number(found.get("latency_s")) * 1e3
                mbps[row, place[peer]] = _number(found.get("bytes_per_s")) * 8 / 1e6
    if not np.isfinite(latency_ms).any() and not np.isfinite(mbps).any():
        return None
    return Links(names, latency_ms, mbps)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")
