"""What nodes were found to be able to do: asked for as a chore, kept in the node's row."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Connection, select, update

from control.db import tables
from control.db.sql.values import instant_text
from trainmaster.calibration import Calibration
from trainmaster.errors import ConflictError, NotFoundError
from trainmaster.spec import RunSpec

log = logging.getLogger(__name__)

MAX_WORKLOADS = 20
"""Workloads whose layers' times are kept of a node: the newest."""

MAX_PEERS = 64
"""Links of one node that are measured; what the others can do is not known."""


def chore_args(
    connection: Connection, node: str, *, heard_since: datetime, spec: RunSpec | None = None
) -> dict[str, Any]:
    """Return the arguments of the chore that calibrates a node: which neighbours it tries, where,
    and whose layers it measures.

    Args:
        heard_since: neighbours that were silent since then are left out.
        spec: its workload's layers are measured.

    Raises:
        NotFoundError: there is no such node.
        ConflictError: ranks have slots of it, so what it can do cannot be measured.
    """
    n, s = tables.nodes.c, tables.slots.c
    if connection.scalar(select(n.id).where(n.id == node)) is None:
        raise NotFoundError(f"there is no node {node!r}")
    run = connection.scalar(select(s.run).where(s.node == node).limit(1))
    if run is not None:
        raise ConflictError(
            f"run {run} has slots of {node}: beside its ranks nothing can be measured; pause it, "
            "or calibrate when it is done",
            code="node_busy",
        )
    rows = connection.execute(
        select(n.id, n.address, n.metrics_port)
        .where(n.id != node, n.last_seen_at >= heard_since, n.metrics_port.is_not(None))
        .order_by(n.id)
    )
    found = rows.fetchmany(MAX_PEERS)
    peers = {row.id: _host_port(row.address, row.metrics_port) for row in found}
    if spec is None:
        return {"peers": peers}
    return {
        "peers": peers,
        "workload": spec.workload,
        "params": spec.params,
        "data": spec.data.source,
    }


def _host_port(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def store(connection: Connection, node: str, result: Mapping[str, Any], *, now: datetime) -> None:
    """Keep what a node found of itself; what cannot be read, or was not found, changes nothing."""
    if result.get("ok") is not True:
        return
    try:
        found = Calibration.model_validate(result.get("result"))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        log.warning("what node %s measured is not kept: %s: %s", node, where, first["msg"])
        return
    query = select(tables.nodes.c.calibration).where(tables.nodes.c.id == node)
    before = (connection.scalar(query) or {}).get("workloads", {})
    kept = found.model_dump(mode="json")
    kept["workloads"] = dict([*before.items(), *kept["workloads"].items()][-MAX_WORKLOADS:])
    connection.execute(
        update(tables.nodes)
        .where(tables.nodes.c.id == node)
        .values(calibration=kept, calibrated_at=now)
    )


def with_calibration(
    profile: Mapping[str, Any],
    calibration: Mapping[str, Any] | None,
    at: datetime | None,
    now: datetime,
) -> dict[str, Any]:
    """Return a node's profile with what it was found to be able to do, when, and how long ago."""
    if calibration is None or at is None:
        return dict(profile)
    age_s = max(0.0, (now - at).total_seconds())
    return {
        **profile,
        "calibration": {"at": instant_text(at), "age_s": round(age_s, 3), **calibration},
    }
