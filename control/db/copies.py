"""Copies of checkpoints: their rows, and what follows from what chores tell of them.

A checkpoint's own `location` is that of the copy that is read first. When that one turns out to be
bad and another is stored, the other takes its place; only when none is left is the checkpoint
itself in trouble.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import unquote

from sqlalchemy import Connection, insert, select, update

from control import snapshot as view
from control.db import history, tables
from control.db.sql.among import one_of
from control.db.sql.values import instant_text
from trainmaster.ids import checkpoint_folder
from trainmaster.storage import MEMORY_SCHEME

LOCAL, STORE = "local", "store"
DUE, STORED, BAD, RETIRED = "due", "stored", "bad", "retired"


def may_lie_at(connection: Connection, location: str, run: str, generation: int, step: int) -> bool:
    """Return whether a checkpoint that was told of can lie there: in its own folder of its run's,
    or in memory. What a node tells must not have another run's read or removed.
    """
    above, _, folder = unquote(location).rpartition("/")
    parent = above.rpartition("/")[2]
    if folder != checkpoint_folder(generation, step) or {".", ".."} & set(above.split("/")):
        return False
    if location.startswith(MEMORY_SCHEME):
        return parent == run
    r = tables.runs.c
    root = connection.scalar(select(r.checkpoint_root).where(r.id == run))
    return root is not None and parent == unquote(root).rpartition("/")[2]


def begin(connection: Connection, checkpoint: Mapping[str, Any], *, node: str) -> None:
    """Note where a checkpoint that has just been committed lies and is to be copied to, if its run
    keeps its checkpoints elsewhere than it writes them. To be repeated at will.

    Args:
        node: whose rank wrote the manifest.
    """
    r, p = tables.runs.c, tables.checkpoint_copies.c
    root = connection.scalar(select(r.copy_root).where(r.id == checkpoint["run"]))
    if root is None:
        return
    if connection.scalar(select(p.tier).where(p.checkpoint == checkpoint["id"]).limit(1)):
        return
    location = str(checkpoint["location"]).rstrip("/")
    common = {"checkpoint": checkpoint["id"], "at": checkpoint["created_at"]}
    target = f"{root}/{location.rpartition('/')[2]}"
    connection.execute(
        insert(tables.checkpoint_copies),
        [
            {**common, "tier": LOCAL, "location": location, "node": node, "state": STORED},
            {**common, "tier": STORE, "location": target, "node": None, "state": DUE},
        ],
    )


def of_run(
    connection: Connection, run: str, busy: Sequence[str]
) -> dict[str, tuple[view.Copy, ...]]:
    """Return the copies of each checkpoint of a run.

    Args:
        busy: the locations that chores are copying to.
    """
    c, p = tables.checkpoints.c, tables.checkpoint_copies.c
    query = (
        select(p.checkpoint, p.tier, p.location, p.state, p.node)
        .join(tables.checkpoints, c.id == p.checkpoint)
        .where(c.run == run, c.state != "retired")
        .order_by(p.checkpoint, p.tier)
    )
    found: dict[str, tuple[view.Copy, ...]] = {}
    for checkpoint, tier, location, state, node in connection.execute(query):
        copy = view.Copy(tier, location, state, node, busy=state == DUE and location in busy)
        found[checkpoint] = (*found.get(checkpoint, ()), copy)
    return found


def shown(connection: Connection, checkpoints: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the copies of checkpoints as the API shows them; none for those with one place."""
    p = tables.checkpoint_copies.c
    query = select(tables.checkpoint_copies).where(one_of(connection, p.checkpoint, checkpoints))
    found: dict[str, list[dict[str, Any]]] = {}
    for row in connection.execute(query.order_by(p.checkpoint, p.tier)).mappings():
        found.setdefault(row["checkpoint"], []).append(
            {
                "location": row["location"],
                "tier": row["tier"],
                "node": row["node"],
                "state": row["state"],
                "at": instant_text(row["at"]),
                "problem": row["problem"],
            }
        )
    return found


def made(
    connection: Connection,
    run: str,
    args: Mapping[str, Any],
    result: Mapping[str, Any],
    problem: str | None,
    *,
    now: datetime,
) -> None:
    """Take the answer to a `copy` chore.

    Args:
        problem: why the copy was not made; None when it was.
    """
    p = tables.checkpoint_copies.c
    checkpoint, target = args.get("checkpoint"), args.get("target")
    row = connection.execute(
        select(p.state, p.problem).where(p.checkpoint == checkpoint, p.location == target)
    ).one_or_none()
    if row is None or row.state not in {DUE, STORED}:
        return
    here = update(tables.checkpoint_copies).where(p.checkpoint == checkpoint, p.location == target)
    if problem is None:
        connection.execute(here.values(state=STORED, at=now, problem=None))
        because = f"{checkpoint} is copied to {target}."
        told = result.get("result")
        data = (
            {name: told.get(name) for name in ("bytes", "files", "seconds")}
            if isinstance(told, Mapping)
            else {}
        )
        _tell(connection, run, "checkpoint_copied", because, now, checkpoint, target, **data)
    else:
        connection.execute(here.values(problem=problem))
        if row.problem is None:  # told once, however often it is tried
            because = f"{checkpoint} is not copied to {target}: {problem}"
            _tell(connection, run, "checkpoint_copy_failed", because, now, checkpoint, target)


def read(connection: Connection, location: str, problem: str | None, *, now: datetime) -> bool:
    """Take what a reading of the checkpoint at `location` found; return whether it is the one that
    is read first and has no other copy, so that the checkpoint itself is concerned.
    """
    p, c = tables.checkpoint_copies.c, tables.checkpoints.c
    row = connection.execute(
        select(p.checkpoint, p.state, c.location, c.run)
        .join(tables.checkpoints, c.id == p.checkpoint)
        .where(p.location == location, p.state != RETIRED)
    ).one_or_none()
    if row is None:
        return True
    here = (p.checkpoint == row.checkpoint) & (p.location == location)
    if problem is None:
        connection.execute(
            update(tables.checkpoint_copies).where(here).values(verified_at=now, problem=None)
        )
        return bool(row.location == location)
    if row.state == BAD:
        return False
    connection.execute(
        update(tables.checkpoint_copies).where(here).values(state=BAD, at=now, problem=problem)
    )
    if row.location != location:
        because = f"The copy of {row.checkpoint} at {location} is bad: {problem}"
        _tell(connection, row.run, "checkpoint_copy_bad", because, now, row.checkpoint, location)
        return False
    other = connection.scalar(
        select(p.location).where(p.checkpoint == row.checkpoint, p.state == STORED).limit(1)
    )
    if other is None:
        return True
    connection.execute(
        update(tables.checkpoints)
        .where(c.id == row.checkpoint)
        .values(location=other, verified_at=None, problem=None)
    )
    because = f"{row.checkpoint} is read from {other} from now on: {problem}"
    _tell(connection, row.run, "checkpoint_copy_bad", because, now, row.checkpoint, location)
    return False


def stored(connection: Connection, checkpoint: str, *, beside: str) -> list[str]:
    """Return the locations of the stored copies of a checkpoint beside one of them."""
    p = tables.checkpoint_copies.c
    query = select(p.location).where(
        p.checkpoint == checkpoint, p.state == STORED, p.location != beside
    )
    return list(connection.scalars(query.order_by(p.tier)))


def lies_on(connection: Connection, location: str, node: str) -> bool:
    """Return whether what is at `location` can be seen from `node`."""
    p = tables.checkpoint_copies.c
    found = connection.execute(
        select(p.node).where(p.location == location, p.state != RETIRED)
    ).one_or_none()
    return found is not None and found.node in {None, node}


def retire(connection: Connection, checkpoint: str, *, now: datetime) -> None:
    """Mark all copies of a checkpoint retired."""
    p = tables.checkpoint_copies.c
    connection.execute(
        update(tables.checkpoint_copies)
        .where(p.checkpoint == checkpoint)
        .values(state=RETIRED, at=now)
    )


def _tell(
    connection: Connection,
    run: str,
    kind: str,
    because: str,
    now: datetime,
    checkpoint: Any,
    location: Any,
    **data: Any,
) -> None:
    history.touch_all(connection, [run], now)
    history.record(
        connection,
        at=now,
        run=run,
        kind=kind,
        actor="control",
        because=because,
        data={"checkpoint": checkpoint, "location": location, **data},
    )
