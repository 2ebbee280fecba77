"""What runs where, as nodes tell it anew at each sync: the rows of ranks and attempts that follow.

A level is not an event: telling it twice changes nothing, and what was missed is told again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    BindParameter,
    Connection,
    bindparam,
    case,
    or_,
    select,
    update,
)

from control.db import history, tables
from control.db.sql.among import among, one_of
from control.db.sql.upsert import upsert
from control.db.sql.values import storable
from trainmaster.ids import parse_rank_stream
from trainmaster.wire import Pulse, Running, Sync

Key = tuple[str, int, int]
"""Run, generation and rank."""

MAX_NODE_CHARS = 63


@dataclass(frozen=True, slots=True)
class Place:
    """A rank that was given to a node.

    Attributes:
        begun: its process is known.
        still: it is stored as standing still.
    """

    state: str
    begun: bool
    still: bool = False


def placed(connection: Connection, said: Mapping[str, Sync]) -> dict[tuple[str, Key], Place]:
    """Return the ranks given to these nodes in the generations they speak of, by node and key."""
    attempts = {key for sync in said.values() for key in _attempts_named(sync)}
    if not attempts:
        return {}
    c = tables.ranks.c
    query = select(c.node, c.run, c.generation, c.rank, c.state, c.boot, c.pulse).where(
        among(connection, (c.run, c.generation), sorted(attempts)),
        one_of(connection, c.node, list(said)),
    )
    return {
        (node, (run, generation, rank)): Place(state, boot is not None, pulse is not None)
        for node, run, generation, rank, state, boot, pulse in connection.execute(query)
    }


def unplaced(
    said: Mapping[str, Sync], placed: Mapping[tuple[str, Key], Place]
) -> set[tuple[str, str, int]]:
    """Return (node, run, generation) of what nodes speak of though it was not given to them."""
    given = {(node, run, generation) for node, (run, generation, _) in placed}
    named = {(node, *key) for node, sync in said.items() for key in _attempts_named(sync)}
    return named - given


def _attempts_named(sync: Sync) -> set[tuple[str, int]]:
    named = {
        key[:2] for batch in sync.batches if (key := parse_rank_stream(batch.stream)) is not None
    }
    return named | {(running.run, running.generation) for running in sync.running}


def store(
    connection: Connection,
    said: Mapping[str, Sync],
    placed: Mapping[tuple[str, Key], Place],
    *,
    now: datetime,
) -> set[str]:
    """Store what runs; return the runs for which that is news."""
    told = [(node, sync.boot, running) for node, sync in said.items() for running in sync.running]
    alive: list[Key] = []
    pulses: dict[Key, Pulse | None] = {}
    news: set[str] = set()
    for node, boot, running in told:
        for rank, pid in running.ranks.items():
            key = (running.run, running.generation, rank)
            place = placed.get((node, key))
            if place is None:
                continue
            alive.append(key)
            pulse = running.pulses.get(rank)
            if pulse is not None or place.still:
                pulses[key] = pulse
            if not place.begun and _begin(connection, key, place, pid, boot):
                news.add(running.run)
    if alive:
        c = tables.ranks.c
        connection.execute(
            update(tables.ranks)
            .where(among(connection, (c.run, c.generation, c.rank), sorted(alive)))
            .values(last_seen_at=now)
        )
    _tell_pulses(connection, pulses)
    _tell_reaches(connection, said, now)
    stores = [
        running
        for node, _, running in told
        if running.store and (node, (running.run, running.generation, 0)) in placed
    ]
    news |= _tell_stores(connection, stores)
    return history.touch_all(connection, sorted(news), now)


def _tell_pulses(connection: Connection, pulses: Mapping[Key, Pulse | None]) -> None:
    """Keep where ranks stand still, and forget it of those that have come on."""
    c = tables.ranks.c
    for (run, generation, rank), pulse in sorted(pulses.items(), key=lambda each: each[0]):
        connection.execute(
            update(tables.ranks)
            .where(c.run == run, c.generation == generation, c.rank == rank)
            .values(pulse=None if pulse is None else pulse.model_dump())
        )


def _tell_reaches(connection: Connection, said: Mapping[str, Sync], now: datetime) -> None:
    """Keep what nodes see of their neighbours."""
    told = [
        {"witness": witness, "node": node, "at": now, "told": reach.model_dump()}
        for witness, sync in sorted(said.items())
        for node, reach in sorted(sync.reaches.items())
        if len(node) <= MAX_NODE_CHARS
    ]
    upsert(connection, tables.reaches, told)


def _begin(connection: Connection, key: Key, place: Place, pid: int, boot: str) -> bool:
    run, generation, rank = key
    c = tables.ranks.c
    begun = (
        update(tables.ranks)
        .where(c.run == run, c.generation == generation, c.rank == rank, c.boot.is_(None))
        .values(state=case((c.state == "assigned", "started"), else_=c.state), pid=pid, boot=boot)
    )
    return bool(connection.execute(begun).rowcount)


def _tell_stores(connection: Connection, told: list[Running]) -> set[str]:
    """Keep where the TCPStore of an attempt is; return the runs to which that is new."""
    if not told:
        return set()
    a = tables.attempts.c
    keys = sorted({(running.run, running.generation) for running in told})
    query = select(a.run, a.generation, a.store).where(
        among(connection, (a.run, a.generation), keys), a.ended_at.is_(None)
    )
    known = {(run, generation): store for run, generation, store in connection.execute(query)}
    news = set()
    for running in told:
        key = (running.run, running.generation)
        store = storable(running.store or "")[:300]
        if key in known and known[key] != store:
            connection.execute(
                update(tables.attempts)
                .where(a.run == running.run, a.generation == running.generation)
                .values(store=store)
            )
            news.add(running.run)
    return news


def seen_stepping(connection: Connection, last_steps: Mapping[Key, int], *, now: datetime) -> None:
    """Keep the newest step that each rank has told."""
    c = tables.ranks.c
    changed = (
        update(tables.ranks)
        .where(
            c.run == bindparam("of_run"),
            c.generation == bindparam("of_generation"),
            c.rank == bindparam("of_rank"),
        )
        .values(last_step=bindparam("last"), last_seen_at=now)
    )
    rows: list[dict[str, Any]] = [
        {"of_run": run, "of_generation": generation, "of_rank": rank, "last": last}
        for (run, generation, rank), last in sorted(last_steps.items())
    ]
    connection.execute(changed, rows)


def widen(connection: Connection, spans: Mapping[tuple[str, int], tuple[int, int]]) -> None:
    """Have each attempt's first and last step embrace these."""
    a = tables.attempts.c
    first: BindParameter[int] = bindparam("first", type_=BigInteger())
    last: BindParameter[int] = bindparam("last", type_=BigInteger())
    changed = (
        update(tables.attempts)
        .where(
            a.run == bindparam("of_run"),
            a.generation == bindparam("of_generation"),
            or_(a.first_step.is_(None), a.first_step > first, a.last_step < last),
        )
        .values(
            first_step=case((a.first_step <= first, a.first_step), else_=first),
            last_step=case((a.last_step >= last, a.last_step), else_=last),
        )
    )
    rows: list[dict[str, Any]] = [
        {"of_run": run, "of_generation": generation, "first": first_step, "last": last_step}
        for (run, generation), (first_step, last_step) in sorted(spans.items())
    ]
    connection.execute(changed, rows)
