"""A run by the kinds of devices that its ranks are on: how fast each is, and whether it is heard
of.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import numpy as np
from sqlalchemy import Connection, select

from control.db import tables
from control.db.fleet import nodes as fleet
from control.db.samples import samples
from control.db.samples.segments import Segment
from control.db.sql.among import one_of
from control.liveness.leases import node_state
from trainmaster.layout import device_behind

RECENT_STEPS: Final = 16
"""Steps whose mean a speed is."""
_MEANS: Final = ("step_time_s", "compute_s", "p2p_wait_s", "utilization_ratio")
_MOST: Final = "memory_used_ratio"
UNKNOWN: Final = "unknown"


def kinds_of(
    connection: Connection, run: str, generation: int, *, now: datetime
) -> list[dict[str, Any]]:
    """Return what the ranks of a generation do, by kind of device, in the order of the kinds'
    names. Means are over ranks and their newest steps; null where nothing was measured.
    """
    r, a, n = tables.ranks.c, tables.attempts.c, tables.nodes.c
    of_attempt = (r.run == run, r.generation == generation)
    ranks = connection.execute(select(r.rank, r.node, r.slot, r.state).where(*of_attempt)).all()
    names = sorted({rank.node for rank in ranks})
    devices = dict(
        connection.execute(select(n.id, n.devices).where(one_of(connection, n.id, names))).all()
    )
    states = {
        node.id: node_state(node, now=now) for node in fleet.read(connection, run, now, only=names)
    }
    last_step = connection.scalar(
        select(a.last_step).where(a.run == run, a.generation == generation)
    )
    newest = Segment(generation, max(0, (last_step or 0) - RECENT_STEPS), last_step or 0)
    told = samples.read_ranks(connection, run, (*_MEANS, _MOST), newest) if last_step else {}
    kinds = {rank.rank: _kind(devices.get(rank.node), rank.slot) for rank in ranks}
    found = []
    for kind in sorted(set(kinds.values())):
        own = [rank for rank in ranks if kinds[rank.rank] == kind]
        nodes = sorted({rank.node for rank in own})
        numbers = [rank.rank for rank in own]
        values = {name: _values(told, name, numbers) for name in (*_MEANS, _MOST)}
        found.append(
            {
                "kind": kind,
                "nodes": nodes,
                "silent_nodes": [node for node in nodes if states.get(node) != "present"],
                "ranks": len(own),
                "ranks_alive": sum(rank.state in {"started", "ready"} for rank in own),
                "last_step": last_step,
                **{name: _rounded(values[name], np.mean) for name in _MEANS},
                _MOST: _rounded(values[_MOST], np.max),
            }
        )
    return found


def _kind(devices: Sequence[dict[str, Any]] | None, slot: int) -> str:
    if not devices:
        return UNKNOWN
    return str(devices[device_behind(slot, len(devices))].get("kind") or UNKNOWN)


def _values(
    told: dict[str, dict[int, Any]], metric: str, ranks: Sequence[int]
) -> np.ndarray[Any, Any]:
    series = [told.get(metric, {}).get(rank) for rank in ranks]
    parts = [each.values for each in series if each is not None]
    values = np.concatenate(parts) if parts else np.empty(0)
    return values[np.isfinite(values)]


def _rounded(values: np.ndarray[Any, Any], reduce: Any) -> float | None:
    return float(reduce(values)) if len(values) else None
