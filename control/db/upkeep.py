"""Upkeep of stores: which checkpoint is read again next, which store is looked through next, and
what follows from what lies there.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, and_, func, or_, select

from control.checkpoints.leftovers import Folder, Writer, leftovers
from control.db import copies, history, tables
from control.db.fleet import chores
from control.db.fleet.chores import DONE
from trainmaster.ids import checkpoint_folder
from trainmaster.storage import MEMORY_SCHEME

GOOD = ("committed", "trusted")
SCRUB_AGAIN_AFTER = timedelta(days=1)
"""After so long a reading that did not get through is tried again."""
SETTLED_AFTER = timedelta(seconds=60)
"""So long after an attempt's end its store is looked through."""
LOOK_AGAIN_AFTER = timedelta(days=1)
LOOK_FOR = timedelta(days=7)
"""For so long after a run's end."""
HEARD_WITHIN = timedelta(seconds=60)
RUNS_AT_ONCE = 20
MOST_NAMES = 20


def scrub_next(
    connection: Connection, *, older_than: timedelta, bytes_per_s: int, now: datetime
) -> bool:
    """Have the copy read that has gone unread for longest, if that is longer than `older_than`; one
    at a time. Return whether there was one.
    """
    h = tables.chores.c
    recent = connection.execute(
        select(h.args, h.state).where(
            h.kind == "scrub", or_(h.state != DONE, h.done_at > now - SCRUB_AGAIN_AFTER)
        )
    ).all()
    if any(state != DONE for _, state in recent):
        return False
    tried = {args.get("location") for args, _ in recent}
    for row in _unread(connection, now - older_than):
        checkpoint, run, generation, location, digest, node = row
        able, doer = _doer(connection, location, (run, generation), node, now)
        if location in tried or not able:
            continue
        args = {
            "location": location,
            "checkpoint": checkpoint,
            "manifest_sha256": digest,
            "bytes_per_s": bytes_per_s,
        }
        chores.ask(connection, "scrub", args, now=now, run=run, node=doer)
        return True
    return False


def _unread(connection: Connection, before: datetime) -> list[Any]:
    c, p = tables.checkpoints.c, tables.checkpoint_copies.c
    read_at = func.coalesce(p.verified_at, c.verified_at, c.created_at)
    query = (
        select(
            c.id,
            c.run,
            c.generation,
            func.coalesce(p.location, c.location),
            c.manifest_sha256,
            p.node,
        )
        .outerjoin(tables.checkpoint_copies, and_(p.checkpoint == c.id, p.state == copies.STORED))
        .where(
            c.state.in_(GOOD),
            c.problem.is_(None),
            c.location.not_like(f"{MEMORY_SCHEME}%"),
            read_at < before,
        )
        .order_by(read_at, c.id)
        .limit(100)
    )
    return list(connection.execute(query))


def _doer(
    connection: Connection,
    location: str,
    trained: tuple[str, int],
    node: str | None,
    now: datetime,
) -> tuple[bool, str | None]:
    """Return whether somebody can read what is at `location`, and who must: None for any node.

    What lies in a folder is read by a node of the attempt `trained`: elsewhere it may not be
    mounted.

    Args:
        node: the only one that has it; None for any of those.
    """
    if not location.startswith("file:"):
        return True, None
    n, k = tables.nodes.c, tables.ranks.c
    there = select(k.node).where(k.run == trained[0], k.generation == trained[1])
    heard = select(n.id).where(n.last_seen_at > now - HEARD_WITHIN).order_by(n.id).limit(1)
    found = connection.scalar(
        heard.where(n.id.in_(there)) if node is None else heard.where(n.id == node)
    )
    return found is not None, found


def list_next(connection: Connection, *, now: datetime) -> int:
    """Have the stores looked through of runs of which an attempt has ended since, and of the others
    once a day; return how many chores that were.
    """
    r, a, h = tables.runs.c, tables.attempts.c, tables.chores.c
    ended = select(a.run, func.max(a.ended_at).label("at")).group_by(a.run).subquery()
    looked = (
        select(h.run, func.max(h.created_at).label("at"))
        .where(h.kind == "list")
        .group_by(h.run)
        .subquery()
    )
    anew = and_(
        ended.c.at < now - SETTLED_AFTER, or_(looked.c.at.is_(None), looked.c.at < ended.c.at)
    )
    daily = and_(
        looked.c.at < now - LOOK_AGAIN_AFTER,
        or_(r.ended_at.is_(None), r.ended_at > now - LOOK_FOR),
    )
    query = (
        select(r.id, r.generation, r.checkpoint_root, r.copy_root)
        .join(ended, ended.c.run == r.id)
        .outerjoin(looked, looked.c.run == r.id)
        .where(or_(anew, daily))
        .order_by(r.id)
        .limit(RUNS_AT_ONCE)
    )
    asked = 0
    for run, generation, root, copy_root in connection.execute(query).all():
        for place in filter(None, (root, copy_root)):
            able, doer = _doer(connection, place, (run, generation), None, now)
            if able:
                chores.ask(connection, "list", {"root": place}, now=now, run=run, node=doer)
                asked += 1
    return asked


def listed(
    connection: Connection,
    run: str,
    node: str,
    args: Mapping[str, Any],
    result: Mapping[str, Any],
    *,
    now: datetime,
) -> None:
    """Have what belongs to nobody removed, and say so in the run's history."""
    root = str(args.get("root"))
    told = result.get("result")
    found = _folders(told.get("folders") if isinstance(told, Mapping) else None)
    going = leftovers(
        found, states=_states(connection, run), writers=_writers(connection, run), now=now
    )
    h = tables.chores.c
    under_way = {
        each.get("location")
        for each in connection.scalars(
            select(h.args).where(h.run == run, h.kind == "retire", h.state != DONE)
        )
    }
    going = [each for each in going if f"{root}/{each.name}" not in under_way]
    if not going:
        return
    doer = node if root.startswith("file:") else None
    for each in going:
        location = f"{root}/{each.name}"
        chores.ask(connection, "retire", {"location": location}, now=now, run=run, node=doer)
    num_bytes = sum(each.bytes for each in going)
    history.touch_all(connection, [run], now)
    history.record(
        connection,
        at=now,
        run=run,
        kind="leftovers_found",
        actor="control",
        because=f"{len(going)} folders ({num_bytes} bytes) in {root} belong to no checkpoint: "
        "saves or retirements that were cut short. They are removed.",
        data={
            "root": root,
            "folders": len(going),
            "bytes": num_bytes,
            "names": [each.name for each in going[:MOST_NAMES]],
        },
    )


def _folders(told: object) -> list[Folder]:
    """Return what an agent told, but for what cannot be."""
    return [
        Folder(each["name"], each.get("committed") is not False, each["bytes"])
        for each in (told if isinstance(told, list) else [])
        if isinstance(each, Mapping)
        and isinstance(each.get("name"), str)
        and isinstance(each.get("bytes"), int)
    ]


def _states(connection: Connection, run: str) -> dict[str, str]:
    c = tables.checkpoints.c
    query = select(c.generation, c.step, c.state).where(c.run == run)
    return {
        checkpoint_folder(generation, step): state
        for generation, step, state in connection.execute(query)
    }


def _writers(connection: Connection, run: str) -> dict[int, Writer]:
    a, k = tables.attempts.c, tables.ranks.c
    alive = set(
        connection.scalars(select(k.generation).where(k.run == run, k.state != "exited").distinct())
    )
    return {
        generation: Writer(ended_at, generation not in alive)
        for generation, ended_at in connection.execute(
            select(a.generation, a.ended_at).where(a.run == run)
        )
    }
