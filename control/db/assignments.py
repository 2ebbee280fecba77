"""What should run on nodes: the assignments in the answers to their syncs. Read from rows alone, so
that repeating it is always right.

Most of an assignment never changes while its attempt lives, and is the dear part: a spec and a plan
to be read and written. It is kept as text, and what may change is put in each time.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, select

from control.db import copies, failures, rows, tables
from control.db.sql.among import among, one_of
from control.db.sql.faults import UnreadableError
from control.db.unreadable import readable
from trainmaster.plan import Plan
from trainmaster.spec import RunSpec
from trainmaster.wire import Assignment, Resume

MAX_KEPT = 2000
"""Attempts whose fixed part is kept in memory: some kilobytes each."""

_SINCE = {"timeline": 3}
"""Kinds of orders, and the protocol in which they came."""
_CHANGING = ("hosts_store", "store", "ranks", "orders", "drills", "stacks")

Attempt = tuple[str, int]
"""Run and generation."""


class FixedParts:
    """The part of assignments that does not change, by attempt; the newest `MAX_KEPT` of them."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Attempt, bytes] = OrderedDict()

    def of(self, connection: Connection, attempt: Attempt) -> bytes:
        """Return the JSON of the fixed part, an object that is left open."""
        part = self._kept.get(attempt)
        if part is None:
            with readable(f"generation {attempt[1]} of run {attempt[0]}"):
                part = _fixed_part(connection, attempt)
            self._kept[attempt] = part
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return part


@dataclass(slots=True)
class Wanted:
    """What is wanted of one node.

    Attributes:
        assignments: the JSON of each.
        soon: something is on its way that the node should hear of soon.
        unreadable: why its assignments cannot be told: one left out would be stopped.
    """

    assignments: list[bytes] = field(default_factory=list)
    soon: bool = False
    unreadable: UnreadableError | None = None


def wanted_of(
    connection: Connection, nodes: Mapping[str, int], fixed: FixedParts
) -> dict[str, Wanted]:
    """Return what is wanted of those of `nodes` that have ranks of living attempts.

    Args:
        nodes: with the protocol that each speaks.
    """
    here = _placed(connection, list(nodes))
    attempts = sorted({(row.run, row.generation) for row in here})
    if not attempts:
        return {}
    orders = _orders(connection, attempts)
    drills = _drills(connection, attempts)
    starting = _starting(connection, attempts)
    by_place: dict[tuple[str, Attempt], list[Row[Any]]] = {}
    for row in here:
        by_place.setdefault((row.node, (row.run, row.generation)), []).append(row)
    wanted: dict[str, Wanted] = {}
    for (node, attempt), ranks in by_place.items():
        changing = {
            "hosts_store": any(row.rank == 0 for row in ranks),
            "store": ranks[0].store,
            "ranks": [{"rank": row.rank, "slot": row.slot} for row in ranks],
            "orders": _understood(orders.get(attempt, []), nodes[node]),
            "drills": drills.get(attempt, []),
            "stacks": [
                {"id": call["id"], "ranks": call["ranks"]} for call in ranks[0].stacks or ()
            ],
        }
        of_node = wanted.setdefault(node, Wanted())
        try:
            part = fixed.of(connection, attempt)
        except UnreadableError as error:
            of_node.unreadable = error
            continue
        of_node.assignments.append(part + b"," + json.dumps(changing).encode()[1:])
        of_node.soon |= ranks[0].store is None or attempt in orders or attempt in starting
    return wanted


def _placed(connection: Connection, nodes: Sequence[str]) -> list[Row[Any]]:
    r, a, k, s = tables.runs.c, tables.attempts.c, tables.ranks.c, tables.slots.c
    # By the slots that are held: ranks of every generation that ever was stay in their table.
    query = (
        select(s.node, s.slot, s.run, s.generation, k.rank, a.store, a.stacks)
        .join(tables.attempts, (a.run == s.run) & (a.generation == s.generation))
        .join(tables.runs, (r.id == s.run) & (r.generation == s.generation))
        .join(
            tables.ranks,
            (k.run == s.run)
            & (k.generation == s.generation)
            & (k.node == s.node)
            & (k.slot == s.slot),
        )
        .where(one_of(connection, s.node, nodes), a.ended_at.is_(None))
        .order_by(s.node, s.run, k.rank)
    )
    return list(connection.execute(query))


def _orders(
    connection: Connection, attempts: Sequence[Attempt]
) -> dict[Attempt, list[dict[str, Any]]]:
    o = tables.orders.c
    query = (
        select(o.run, o.generation, o.seq, o.kind, o.args)
        .where(
            among(connection, (o.run, o.generation), attempts), o.state.in_(("sent", "received"))
        )
        .order_by(o.seq)
    )
    found: dict[Attempt, list[dict[str, Any]]] = {}
    for run, generation, seq, kind, args in connection.execute(query):
        found.setdefault((run, generation), []).append({"seq": seq, "kind": kind, "args": args})
    return found


def _understood(orders: list[dict[str, Any]], protocol: int) -> list[dict[str, Any]]:
    """Return the orders of kinds that an agent of `protocol` knows: it would refuse the whole
    answer for another.
    """
    return [order for order in orders if protocol >= _SINCE.get(order["kind"], 1)]


def _drills(
    connection: Connection, attempts: Sequence[Attempt]
) -> dict[Attempt, list[Mapping[str, Any]]]:
    d = tables.drills.c
    query = (
        select(d.run, d.generation, d.drill)
        .where(among(connection, (d.run, d.generation), attempts))
        .order_by(d.id)
    )
    found: dict[Attempt, list[Mapping[str, Any]]] = {}
    for run, generation, drill in connection.execute(query):
        found.setdefault((run, generation), []).append(drill)
    return found


def _starting(connection: Connection, attempts: Sequence[Attempt]) -> set[Attempt]:
    k = tables.ranks.c
    query = (
        select(k.run, k.generation)
        .where(
            among(connection, (k.run, k.generation), attempts), k.state.in_(("assigned", "started"))
        )
        .distinct()
    )
    return {(run, generation) for run, generation in connection.execute(query)}


def _fixed_part(connection: Connection, attempt: Attempt) -> bytes:
    run, generation = attempt
    a, r = tables.attempts.c, tables.runs.c
    row = (
        connection.execute(
            select(tables.attempts, r.checkpoint_root)
            .join(tables.runs, r.id == a.run)
            .where(a.run == run, a.generation == generation)
        )
        .mappings()
        .one()
    )
    plan = Plan.model_validate(row["plan"])
    spec = RunSpec.model_validate(row["spec"])
    whole = Assignment(
        run=run,
        generation=generation,
        world_size=plan.world_size,
        hosts_store=False,
        store=None,
        ranks=[],
        spec=spec,
        plan=plan,
        resume=_resume(connection, row),
        skip=list(rows.ranges(row["skip"])),
        lr_windows=list(rows.lr_windows(row["lr_windows"])),
        checkpoint_every=row["checkpoint_every"],
        mtbf_s=failures.expected_after_s(connection, plan, now=row["started_at"])
        if spec.checkpoint.every_steps == "auto"
        else None,
        checkpoint_root=row["checkpoint_root"],
        neighbours=_neighbours(connection, run, generation),
    )
    return whole.model_dump_json(exclude=set(_CHANGING)).encode()[:-1]


def _neighbours(connection: Connection, run: str, generation: int) -> dict[str, str]:
    """Return where the agents of the attempt's nodes listen, if it has several."""
    k, n = tables.ranks.c, tables.nodes.c
    homes = select(k.node).where(k.run == run, k.generation == generation)
    found = connection.execute(
        select(n.id, n.address, n.metrics_port).where(n.id.in_(homes)).order_by(n.id)
    ).all()
    if len(found) < 2:
        return {}
    return {
        row.id: f"[{row.address}]:{row.metrics_port}"
        if ":" in row.address
        else f"{row.address}:{row.metrics_port}"
        for row in found
        if row.metrics_port is not None
    }


def _resume(connection: Connection, attempt: rows.Row) -> Resume | None:
    if attempt["resumed_from_checkpoint"] is None:
        return None
    c = tables.checkpoints.c
    row = connection.execute(
        select(c.id, c.step, c.location, c.manifest_sha256).where(
            c.id == attempt["resumed_from_checkpoint"]
        )
    ).one()
    return Resume(
        checkpoint=row.id,
        step=row.step,
        location=row.location,
        manifest_sha256=row.manifest_sha256,
        copies=copies.stored(connection, row.id, beside=row.location),
    )
