"""What nodes found the workload of a run to be."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select

from control.db import tables

Json = dict[str, Any]


def workload(connection: Connection, run: str, key: str) -> Json | None:
    """Return what a node found the workload and its data to be, None before one has looked; of its
    layers only how many operations they take for one sample.

    A later submission of the same has it looked at anew: what the newest attempt of `run` was made
    of stays.
    """
    info = connection.scalar(select(tables.workloads.c.info).where(tables.workloads.c.key == key))
    if not info:
        return None
    counted = [layer.get("forward_flops") for layer in info.get("layers") or []]
    flops = sum(counted) if counted and None not in counted else None
    told = {name: value for name, value in info.items() if name != "layers"}
    return {**told, **_made_of(connection, run), "forward_flops": flops}


def _made_of(connection: Connection, run: str) -> Json:
    e = tables.events.c
    begun = select(e.data).where(e.run == run, e.kind == "run_starting")
    data = connection.scalar(begun.order_by(e.id.desc()).limit(1)) or {}
    made_of: Json = data.get("made_of") or {}
    return made_of
