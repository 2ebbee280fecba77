"""What belongs to runs, as the API shows it: checkpoints, alerts, incidents, requests, nodes.
Oldest first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select

from control.db import copies, drillmarks, silences, tables
from control.db.fleet import stacks
from control.db.fleet.calibrations import with_calibration
from control.db.rows import Row
from control.db.sql.among import one_of
from control.db.sql.values import instant_text
from control.liveness.leases import node_state, sync_interval_s
from control.snapshot import Node
from trainmaster.errors import NotFoundError

Json = dict[str, Any]


def at(value: datetime | None) -> str | None:
    """Return an instant as text, None as None."""
    return None if value is None else instant_text(value)


def checkpoints_of(connection: Connection, run: str) -> list[Json]:
    """Return all checkpoints of a run, retired ones included."""
    c = tables.checkpoints.c
    query = (
        select(tables.checkpoints).where(c.run == run).order_by(c.created_at, c.generation, c.step)
    )
    found = connection.execute(query).mappings().all()
    copied = copies.shown(connection, [row["id"] for row in found])
    return [_checkpoint(row, copied) for row in found]


def checkpoint(connection: Connection, checkpoint_id: str) -> Json:
    """Return one checkpoint.

    Raises:
        NotFoundError: there is none with this id.
    """
    c = tables.checkpoints.c
    row = (
        connection.execute(select(tables.checkpoints).where(c.id == checkpoint_id))
        .mappings()
        .one_or_none()
    )
    if row is None:
        raise NotFoundError(f"there is no checkpoint {checkpoint_id}")
    return _checkpoint(row, copies.shown(connection, [row["id"]]))


def _checkpoint(row: Row, copied: Mapping[str, list[Json]]) -> Json:
    instants = {name: at(row[name]) for name in ("created_at", "verified_at", "trusted_at")}
    only = {
        "location": row["location"],
        "tier": copies.STORE,
        "node": None,
        "state": copies.RETIRED if row["state"] == "retired" else copies.STORED,
        "at": instants["created_at"],
        "problem": row["problem"],
    }
    return {**row, **instants, "copies": copied.get(row["id"], [only])}


def alerts(
    connection: Connection, *, run: str | None = None, state: str | None = None, now: datetime
) -> list[Json]:
    """Return alerts of a run, or of all; those that healed before they fired only when asked for by
    their state.
    """
    quiet = silences.of_runs(connection, now=now)
    mark = drillmarks.marks(connection, run)
    c = tables.alerts.c
    query = select(tables.alerts).where(
        c.state != "inactive" if state is None else c.state == state
    )
    if run is not None:
        query = query.where(c.run == run)
    return [
        {
            **row,
            "source": "rule",
            "silenced": row["state"] in {"pending", "firing"} and quiet(row["run"], row["rule"]),
            "since": at(row["since"]),
            "changed_at": at(row["changed_at"]),
            "drill": mark(row["run"], {row["generation"]}, row["first_bad_step"]),
        }
        for row in connection.execute(query.order_by(c.id)).mappings().all()
    ]


def incidents(
    connection: Connection, *, run: str | None = None, state: str | None = None
) -> list[Json]:
    """Return incidents of a run, or of all."""
    c = tables.incidents.c
    query = select(tables.incidents).order_by(c.opened_at, c.id)
    if run is not None:
        query = query.where(c.run == run)
    if state is not None:
        query = query.where(c.state == state)
    rows = connection.execute(query).mappings().all()
    return _incidents(connection, rows, run)


def incident(connection: Connection, incident_id: str) -> Json:
    """Return one incident.

    Raises:
        NotFoundError: there is none with this id.
    """
    found = connection.execute(
        select(tables.incidents).where(tables.incidents.c.id == incident_id)
    ).mappings()
    row = found.one_or_none()
    if row is None:
        raise NotFoundError(f"there is no incident {incident_id!r}")
    return _incidents(connection, [row], row["run"])[0]


def _incidents(connection: Connection, rows: Sequence[Row], run: str | None) -> list[Json]:
    ids = [row["id"] for row in rows]
    kept = stacks.of_incidents(connection, ids)
    alerts = _alerts_of(connection, ids, sorted({row["run"] for row in rows}))
    mark = drillmarks.marks(connection, run)
    found = []
    for row in rows:
        of = {action["generation"] for action in row["actions"] if "generation" in action}
        drill = mark(row["run"], of or None, row["first_bad_step"])
        found.append(
            {
                **_incident(row),
                "alerts": alerts.get(row["id"], []),
                "stacks": kept.get(row["id"], []),
                "drill": drill,
            }
        )
    return found


def _alerts_of(
    connection: Connection, incidents: Sequence[str], runs: Sequence[str]
) -> dict[str, list[Json]]:
    """Return incident -> the alerts that belong to it, the first sign first."""
    c = tables.alerts.c
    query = (
        select(c.incident, c.rule, c.scope, c.state, c.severity, c.first_bad_step)
        .where(one_of(connection, c.run, runs), one_of(connection, c.incident, incidents))
        .order_by(c.first_bad_step, c.id)
    )
    found: dict[str, list[Json]] = {}
    for row in connection.execute(query).mappings():
        alert = {key: value for key, value in row.items() if key != "incident"}
        found.setdefault(row["incident"], []).append(alert)
    return found


def _incident(row: Row) -> Json:
    closed_at: datetime | None = row["closed_at"]
    return {
        **row,
        "opened_at": at(row["opened_at"]),
        "closed_at": at(closed_at),
        "mttr_s": None if closed_at is None else (closed_at - row["opened_at"]).total_seconds(),
    }


def requests_of(connection: Connection, run: str) -> list[Json]:
    """Return what was ever asked of a run."""
    c = tables.requests.c
    query = select(tables.requests).where(c.run == run).order_by(c.id)
    return [_request(connection, row) for row in connection.execute(query).mappings().all()]


def request(connection: Connection, request_id: int) -> Json:
    """Return one request and how far the order that carries it out has come.

    Raises:
        NotFoundError: there is none with this id.
    """
    c = tables.requests.c
    row = (
        connection.execute(select(tables.requests).where(c.id == request_id))
        .mappings()
        .one_or_none()
    )
    if row is None:
        raise NotFoundError(f"there is no request {request_id}")
    return _request(connection, row)


def _request(connection: Connection, row: Row) -> Json:
    o = tables.orders.c
    order = (
        connection.execute(
            select(o.generation, o.seq, o.kind, o.state, o.step, o.because, o.changed_at)
            .where(o.request == row["id"])
            .order_by(o.generation.desc(), o.seq.desc())
            .limit(1)
        )
        .mappings()
        .one_or_none()
    )
    return {
        **{name: value for name, value in row.items() if name != "idempotency_key"},
        "created_at": at(row["created_at"]),
        "changed_at": at(row["changed_at"]),
        "order": None if order is None else {**order, "changed_at": at(order["changed_at"])},
    }


def nodes(connection: Connection, *, now: datetime, up_since: datetime | None) -> list[Json]:
    """Return all nodes, in the order in which they first came."""
    s, n = tables.slots.c, tables.nodes.c
    taken: dict[str, list[Json]] = {}
    for node, slot, run, generation in connection.execute(
        select(tables.slots).order_by(s.node, s.slot)
    ):
        taken.setdefault(node, []).append({"slot": slot, "run": run, "generation": generation})
    query = select(tables.nodes).order_by(n.first_seen_at, n.id)
    rows = connection.execute(query).mappings().all()
    idle_s = sync_interval_s(len(rows))
    return [_node(row, taken.get(row["id"], []), idle_s, now, up_since) for row in rows]


def node(connection: Connection, node_id: str, *, now: datetime, up_since: datetime | None) -> Json:
    """Return one node.

    Raises:
        NotFoundError: no node of that name was ever heard.
    """
    for each in nodes(connection, now=now, up_since=up_since):
        if each["id"] == node_id:
            return each
    raise NotFoundError(f"there is no node {node_id!r}")


_HIDDEN = frozenset({"boot", "calibration", "calibrated_at"})


def _node(
    row: Row, taken: list[Json], idle_s: float, now: datetime, up_since: datetime | None
) -> Json:
    seen = Node(
        row["id"],
        row["slots"],
        row["last_seen_at"],
        row["boot"],
        row["address"],
        sync_interval_s=1.0 if taken else idle_s,
    )
    return {
        **{name: value for name, value in row.items() if name not in _HIDDEN},
        "profile": with_calibration(row["profile"], row["calibration"], row["calibrated_at"], now),
        "name": row["id"],
        "state": node_state(seen, now=now, control_up_since=up_since),
        "taken": taken,
        "first_seen_at": at(row["first_seen_at"]),
        "last_seen_at": at(row["last_seen_at"]),
    }
