"""Chores: work for agents that is not training. Asked for once, given to one node at a time,
repeated until its answer is stored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Connection, and_, delete, exists, insert, or_, select, update

from control.db import copies, tables
from control.db.fleet import calibrations
from control.db.sql.among import one_of
from control.db.sql.upsert import upsert
from control.db.sql.values import instant_text, plain, storable_tree, whole
from trainmaster.errors import IntegrityError, NotFoundError
from trainmaster.wire import BASIC_CHORES, CHORES_PROTOCOL, Chore, WorkloadInfo

WAITING, TAKEN, DONE = "waiting", "taken", "done"

GIVE_UP_AFTER = timedelta(seconds=15)
"""After so long without a sync of the node that took it, another node may do a chore."""

AGAIN_AFTER = timedelta(seconds=60)
"""After so long a reading that failed for a passing reason is asked for again."""

KEEP = timedelta(days=30)
"""So long the answer of one that is done can be read."""

PER_SYNC = 8

PREFIX = "chore-"
"""What the ids of chores that a person asked for begin with, where they stand beside requests."""


def digest(value: Any) -> str:
    """Return a digest of JSON data that does not depend on the order of keys."""
    return hashlib.sha256(
        json.dumps(plain(value), sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


def workload_args(workload: str, params: Mapping[str, Any], data: str) -> dict[str, Any]:
    """Return the arguments of a `describe` chore; their digest is the key of what is known of a
    workload.
    """
    return {"workload": workload, "params": dict(params), "data": data}


def ask(
    connection: Connection,
    kind: str,
    args: Mapping[str, Any],
    *,
    now: datetime,
    run: str | None = None,
    node: str | None = None,
) -> int:
    """Ask for a chore unless the same is still waiting to be done; return its id."""
    c = tables.chores.c
    key = digest({"kind": kind, "args": args})
    waiting = connection.scalar(select(c.id).where(c.key == key, c.state != DONE).limit(1))
    if waiting is not None:
        return int(waiting)
    added = connection.execute(
        insert(tables.chores).values(
            kind=kind,
            args=plain(args),
            key=key,
            run=run,
            node=node,
            bound=node is not None,
            state=WAITING,
            result={},
            created_at=now,
        )
    )
    assert added.inserted_primary_key is not None
    return int(added.inserted_primary_key[0])


def asked_before(
    connection: Connection, kind: str, args: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return how far the newest chore of this kind with these arguments has come, as `shown` does;
    None where there is none.
    """
    c = tables.chores.c
    key = digest({"kind": kind, "args": args})
    newest = connection.scalar(select(c.id).where(c.key == key).order_by(c.id.desc()).limit(1))
    return None if newest is None else shown(connection, f"{PREFIX}{newest}")


def take(
    connection: Connection, nodes: Mapping[str, int], *, now: datetime
) -> dict[str, list[Chore]]:
    """Return what each of `nodes` should do: what it already took, and what waits for any node that
    knows how. Nodes without work are left out.

    Args:
        nodes: the protocol that each speaks.
    """
    if not nodes:
        return {}
    c = tables.chores.c
    able = [node for node, protocol in nodes.items() if protocol >= CHORES_PROTOCOL]
    named = one_of(connection, c.node, list(nodes))
    free = and_(c.state == WAITING, or_(c.node.is_(None), named))
    mine = and_(c.state == TAKEN, named)
    query = select(c.id, c.kind, c.args, c.state, c.node).where(or_(free, mine))
    if not able:
        query = query.where(c.kind.in_(BASIC_CHORES))
    found = connection.execute(query.order_by(c.id).limit(PER_SYNC * len(nodes))).all()
    work: dict[str, list[Chore]] = {}
    for chore, kind, args, state, node in found:
        knowing = list(nodes) if kind in BASIC_CHORES else able
        doer = node or _least_busy(knowing, work)
        if doer not in knowing or len(work.get(doer, ())) >= PER_SYNC:
            continue
        if state == WAITING:
            claim = update(tables.chores).where(c.id == chore, c.state == WAITING)
            if not connection.execute(claim.values(state=TAKEN, node=doer, taken_at=now)).rowcount:
                continue
        work.setdefault(doer, []).append(Chore(id=chore, kind=kind, args=args))
    return work


def forget(connection: Connection, *, now: datetime) -> None:
    """Remove what was done long ago, but for the newest look through each run's stores: it tells
    when to look again.
    """
    c, newer = tables.chores.c, tables.chores.alias()
    looked_since = exists().where(
        newer.c.run == c.run, newer.c.kind == "list", newer.c.created_at > c.created_at
    )
    connection.execute(
        delete(tables.chores).where(
            c.state == DONE, c.done_at < now - KEEP, or_(c.kind != "list", looked_since)
        )
    )


def _least_busy(nodes: Sequence[str], work: Mapping[str, list[Chore]]) -> str:
    return min(nodes, key=lambda node: len(work.get(node, ())))


def release(connection: Connection, *, now: datetime) -> int:
    """Let other nodes do what a node took that has not been heard of since; return how many chores
    that were.
    """
    c = tables.chores.c
    silent = select(tables.nodes.c.id).where(tables.nodes.c.last_seen_at < now - GIVE_UP_AFTER)
    return connection.execute(
        update(tables.chores)
        .where(c.state == TAKEN, c.bound.is_(False), c.node.in_(silent))
        .values(state=WAITING, node=None, taken_at=None)
    ).rowcount


@dataclass(frozen=True, slots=True)
class Answered:
    """A chore with its answer."""

    kind: str
    args: Mapping[str, Any]
    run: str | None
    result: Mapping[str, Any]


def answer(
    connection: Connection, node: str, data: Mapping[str, Any], *, now: datetime
) -> Answered | None:
    """Store the result of a chore (data of the event `chore_done`) and what follows from it for
    workloads and checkpoints; return the chore.

    A second answer, or one to a chore that was never asked for, changes nothing.
    """
    c = tables.chores.c
    chore = whole(data.get("id"))
    if chore is None:
        return None
    row = (
        connection.execute(select(tables.chores).where(c.id == chore, c.state != DONE))
        .mappings()
        .one_or_none()
    )
    if row is None:
        return None
    result = storable_tree({key: value for key, value in data.items() if key != "id"})
    connection.execute(
        update(tables.chores)
        .where(c.id == row["id"])
        .values(state=DONE, node=node, result=result, done_at=now)
    )
    if row["kind"] == "describe":
        _described(connection, node, row["args"], result, now)
    elif row["kind"] in {"verify", "scrub"}:
        _verified(connection, row["args"], result, now)
    elif row["kind"] == "copy":
        _copied(connection, row["run"], row["args"], result, now)
    elif row["kind"] == "calibrate":
        calibrations.store(connection, node, result, now=now)
    return Answered(row["kind"], row["args"], row["run"], result)


def _described(
    connection: Connection,
    node: str,
    args: Mapping[str, Any],
    result: Mapping[str, Any],
    now: datetime,
) -> None:
    problems = problems_in(result)
    info = None
    if not problems:
        try:
            info = WorkloadInfo.model_validate(result.get("result")).model_dump(mode="json")
        except ValidationError as error:
            problems = [
                {
                    "path": "workload",
                    "message": f"node {node} described it in a way that cannot be read: {error}",
                }
            ]
    row = {
        "key": digest(args),
        "info": info,
        "problems": problems,
        "described_at": now,
        "node": node,
    }
    upsert(connection, tables.workloads, [row])
    waiting = tables.runs.c
    connection.execute(
        update(tables.runs)
        .where(waiting.workload_key == row["key"], waiting.state == "queued")
        .values(touched=waiting.touched + 1, next_look_at=now)
    )


def _verified(
    connection: Connection, args: Mapping[str, Any], result: Mapping[str, Any], now: datetime
) -> None:
    c = tables.checkpoints.c
    report = result.get("result")
    if result.get("retryable") is True:
        return  # the store could not be read just now: that says nothing about the checkpoint
    is_sound = isinstance(report, Mapping) and report.get("sound") is True
    problems = [] if is_sound else problems_in(result)
    says = "; ".join(problem["message"] for problem in problems)
    location = str(args.get("location"))
    if not copies.read(connection, location, says if problems else None, now=now):
        return
    changes = {"problem": says} if problems else {"problem": None, "verified_at": now}
    connection.execute(
        update(tables.checkpoints)
        .where(c.location == location, c.state != "retired")
        .values(**changes)
    )


def _copied(
    connection: Connection,
    run: str,
    args: Mapping[str, Any],
    result: Mapping[str, Any],
    now: datetime,
) -> None:
    problems = problems_in(result)
    says = "; ".join(problem["message"] for problem in problems) if problems else None
    copies.made(connection, run, args, result, says, now=now)
    if result.get("code") == IntegrityError.code:  # what was to be copied is damaged itself
        _verified(connection, {"location": args.get("source")}, result, now)


def shown(connection: Connection, chore_id: str) -> dict[str, Any]:
    """Return how far a chore has come, in the words of a request; its result once it is done.

    Raises:
        NotFoundError: there is none with this id.
    """
    number = chore_id.removeprefix(PREFIX)
    c = tables.chores.c
    row = None
    if number.isascii() and number.isdecimal() and len(number) < 19:
        row = (
            connection.execute(select(tables.chores).where(c.id == int(number)))
            .mappings()
            .one_or_none()
        )
    if row is None:
        raise NotFoundError(f"there is no request {chore_id!r}")
    state = {WAITING: "pending", TAKEN: "accepted", DONE: "applied"}[row["state"]]
    told = {"id": chore_id, "kind": row["kind"], "state": state, "node": row["node"], **row["args"]}
    if row["state"] != DONE:
        return told
    problems = problems_in(row["result"])
    result = row["result"].get("result")
    findings = result.get("findings") if isinstance(result, Mapping) else None
    return {
        **(result if isinstance(result, Mapping) else {}),
        **told,
        "ok": not problems,
        "findings": findings or problems,
        "done_at": instant_text(row["done_at"]),
    }


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a workload: its description, or what is wrong with it."""

    info: WorkloadInfo | None
    problems: list[dict[str, Any]]


def known_workload(connection: Connection, args: Mapping[str, Any]) -> Known:
    """Return what the last `describe` chore with these arguments found."""
    c = tables.workloads.c
    row = connection.execute(select(c.info, c.problems).where(c.key == digest(args))).one_or_none()
    if row is None:
        return Known(None, [])
    return Known(None if row.info is None else WorkloadInfo.model_validate(row.info), row.problems)


def problems_in(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what a chore found wrong, each with a path and a message; empty when it went well."""
    result = data.get("result")
    found = (
        data.get("problems")
        or (result.get("findings") if isinstance(result, Mapping) else None)
        or []
    )
    problems = [
        {
            "path": str(each.get("path") or each.get("file") or ""),
            "message": str(each.get("message", "")),
            "line": None,
        }
        for each in found
        if isinstance(each, Mapping)
    ]
    if not problems and data.get("ok") is not True:
        problems = [
            {
                "path": "",
                "message": str(data.get("because") or "it failed without a reason"),
                "line": None,
            }
        ]
    return problems
