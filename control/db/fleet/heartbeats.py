"""That a node was heard, and what it says of itself: the row of a node.

Heartbeats are most of what a fleet says, and nearly always only the time is new. So what this
process has stored of a node is remembered, and while the node says the same, one statement renews
the times of all nodes of a group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, update

from control.db import tables
from control.db.sql.among import among
from control.db.sql.upsert import upsert
from control.db.sql.values import storable, storable_tree
from trainmaster.wire import Sync

ANEW_AFTER = timedelta(seconds=60)
"""After so long the whole row is written again: the skew shown of its clock should not be old."""


@dataclass(frozen=True, slots=True)
class Described:
    """What is stored of a node, and since when."""

    said: tuple[Any, ...]
    at: datetime


def store(
    connection: Connection,
    said: Mapping[str, Sync],
    stored: Mapping[str, Described],
    *,
    now: datetime,
) -> dict[str, Described]:
    """Renew the rows of the nodes in `said`; return what was written of those written anew.

    The rows stay locked until the transaction ends: two syncs of one node come one after the other.

    Args:
        said: in the order of the nodes' names, which is the order of the locks.
        stored: what earlier, committed calls returned.
    """
    same = [
        (node, sync.boot)
        for node, sync in said.items()
        if (known := stored.get(node)) is not None
        and known.said == _of_itself(sync)
        and timedelta(0) <= now - known.at < ANEW_AFTER
    ]
    renewed = _renew(connection, same, now)
    fresh = {node: sync for node, sync in said.items() if node not in renewed}
    rows = [_row(node, sync, now) for node, sync in fresh.items()]
    upsert(connection, tables.nodes, rows, keep=("first_seen_at", "cordoned", "cordoned_because"))
    return {node: Described(_of_itself(sync), now) for node, sync in fresh.items()}


def _renew(connection: Connection, same: Sequence[tuple[str, str]], now: datetime) -> set[str]:
    if not same:
        return set()
    c = tables.nodes.c
    # With the boot: another control plane may have heard a later life of the node meanwhile.
    renew = update(tables.nodes).where(among(connection, (c.id, c.boot), same))
    renew = renew.values(last_seen_at=now)
    return set(connection.scalars(renew.returning(c.id)))


def _of_itself(sync: Sync) -> tuple[Any, ...]:
    return (
        sync.boot,
        sync.version,
        sync.address,
        sync.metrics_port,
        sync.slots,
        sync.devices,
        sync.labels,
        sync.profile,
    )


def _row(node: str, sync: Sync, now: datetime) -> dict[str, Any]:
    return {
        "id": node,
        "boot": storable(sync.boot),
        "version": storable(sync.version),
        "address": storable(sync.address),
        "metrics_port": sync.metrics_port,
        "slots": sync.slots,
        "devices": [storable_tree(device.model_dump()) for device in sync.devices],
        "labels": storable_tree(sync.labels),
        "profile": storable_tree(sync.profile),
        "clock_skew_s": (sync.sent_at - now).total_seconds(),
        "last_seen_at": now,
        "first_seen_at": now,
        "cordoned": False,
        "cordoned_because": "",
    }
