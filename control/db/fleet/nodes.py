"""The nodes, as turns of runs see them.

A fleet of thousands is not read anew for each turn of each run. What a run has to do with, the
nodes of its ranks, is read in the turn's own transaction; the rest, where ranks might go, may be a
second old: a slot that was taken meanwhile clashes when the decision is applied, and the run is
looked at again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, or_, select

from control.db import tables
from control.db.fleet.calibrations import with_calibration
from control.db.sql.among import one_of
from control.liveness.leases import sync_interval_s
from control.snapshot import Node

REMEMBERED = timedelta(days=7)
"""Nodes that have been silent for longer are not offered."""

MAX_AGE = timedelta(seconds=1)


class Fleet:
    """The nodes that were heard of lately, kept for a second."""

    def __init__(self) -> None:
        self._nodes: tuple[Node, ...] = ()
        self._read_at: datetime | None = None

    def forget(self) -> None:
        """Read all of them again next time: what is known of their slots has changed."""
        self._read_at = None

    def seen_by(
        self, connection: Connection, run: str, own: Collection[str], now: datetime
    ) -> tuple[Node, ...]:
        """Return the nodes in the order of their names; those in `own`, and those of which `run`
        holds slots, as they are now.
        """
        if self._read_at is None or not timedelta(0) <= now - self._read_at < MAX_AGE:
            self._nodes = read(connection, None, now)
            self._read_at = now
        s = tables.slots.c
        held = set(connection.scalars(select(s.node).where(s.run == run)))
        names = sorted(held | set(own))
        if not names:
            return self._nodes
        idle_s = sync_interval_s(len(self._nodes))
        fresh = {
            node.id: node if node.taken else replace(node, sync_interval_s=idle_s)
            for node in read(connection, run, now, only=names)
        }
        seen = [fresh.pop(node.id, node) for node in self._nodes]
        if fresh:
            seen = sorted([*seen, *fresh.values()], key=lambda node: node.id)
        return tuple(seen)


def read(
    connection: Connection, run: str | None, now: datetime, *, only: Sequence[str] | None = None
) -> tuple[Node, ...]:
    """Return the nodes that have been heard of lately, or those named, with the slots that `run`
    and all others hold.
    """
    n, s = tables.nodes.c, tables.slots.c
    taken: dict[str, set[int]] = {}
    held: dict[str, set[int]] = {}
    slots = select(s.node, s.slot, s.run)
    if only is not None:
        slots = slots.where(one_of(connection, s.node, only))
    for node, slot, holder in connection.execute(slots):
        taken.setdefault(node, set()).add(slot)
        if holder == run:
            held.setdefault(node, set()).add(slot)
    wanted: ColumnElement[bool]
    if only is None:
        wanted = or_(n.last_seen_at > now - REMEMBERED, one_of(connection, n.id, list(taken)))
    else:
        wanted = one_of(connection, n.id, only)
    query = select(
        *(n.id, n.slots, n.last_seen_at, n.boot, n.address, n.labels, n.cordoned, n.profile),
        *(n.calibration, n.calibrated_at, n.devices),
    ).where(wanted)
    found = connection.execute(query.order_by(n.id)).all()
    idle_s = sync_interval_s(len(found))
    return tuple(
        Node(
            id=row.id,
            slots=row.slots,
            last_seen_at=row.last_seen_at,
            boot=row.boot,
            address=row.address,
            labels=row.labels,
            cordoned=row.cordoned,
            taken=frozenset(taken.get(row.id, ())),
            held_here=frozenset(held.get(row.id, ())),
            sync_interval_s=1.0 if row.id in taken else idle_s,
            profile=with_calibration(row.profile, row.calibration, row.calibrated_at, now),
            device=device_kind(row.devices),
        )
        for row in found
    )


def device_kind(devices: Sequence[Mapping[str, Any]]) -> str:
    """Return the kind of a node's devices: they are all of one."""
    return str(devices[0].get("kind") or "cpu") if devices else "cpu"


def profiles(connection: Connection, nodes: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return node -> what it says of itself, and has measured."""
    n = tables.nodes.c
    query = select(n.id, n.profile, n.calibration).where(one_of(connection, n.id, list(nodes)))
    return {
        row.id: {**row.profile, "calibration": row.calibration or {}}
        for row in connection.execute(query)
    }
