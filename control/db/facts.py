"""What nodes say, stored once: the heartbeat, the batches of spool streams, and what runs where.

One transaction per sync. A batch counts only if it begins where the stored cursor of its stream
stands; cursor and rows move together, so a batch that is sent twice, late or again after a restore
is stored once. The update of the node's row, which comes first, keeps two syncs of one node apart.
What a superseded generation says is stored as history; `control.db.effects` sees to it that it
changes no run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, func, select, update

from control.db import chunks, effects, history, samples, tables
from control.db.effects import Told
from control.db.upsert import upsert
from control.db.values import number_word, storable, storable_tree, whole
from trainmaster.ids import is_agent_stream, parse_rank_stream
from trainmaster.spool import is_missing
from trainmaster.wire import Batch, Columns, Event, Running, Sync

MAX_EVENT_DATA = 64 << 10


@dataclass(frozen=True, slots=True)
class Stored:
    """What came of a sync: up to where each stream is stored, and the runs of which there is
    news.
    """

    cursors: Mapping[str, int]
    touched: frozenset[str]


def store(connection: Connection, node: str, sync: Sync, *, now: datetime) -> Stored:
    """Store what `node` says. Streams that are not this node's to tell are left out of the
    answer.
    """
    _heard(connection, node, sync, now)
    cursors = _cursors(connection, node, [batch.stream for batch in sync.batches])
    placed = _placed(connection, node, sync)
    fresh = []
    for batch in sync.batches:
        known = is_agent_stream(batch.stream) or parse_rank_stream(batch.stream) in placed
        if not known:
            del cursors[batch.stream]
        elif batch.from_offset == cursors[batch.stream] and batch.to_offset > batch.from_offset:
            cursors[batch.stream] = batch.to_offset
            fresh.append(batch)
    touched = _runs_named(fresh)
    known_runs = {run for run in sorted(touched) if history.touch(connection, run, now)}
    # What ranks said comes before what their agent says of their end.
    for batch in sorted(fresh, key=lambda each: is_agent_stream(each.stream)):
        key = parse_rank_stream(batch.stream)
        if key is None:
            _store_agent_events(connection, node, sync.boot, batch.events, known_runs, now)
        else:
            _store_rank_batch(connection, node, key, batch, now)
    for running in sync.running:
        if _store_level(connection, node, sync.boot, running, placed, now):
            known_runs.add(running.run)
    moved = {batch.stream: cursors[batch.stream] for batch in fresh}
    upsert(
        connection,
        tables.cursors,
        [{"node": node, "stream": stream, "offset": offset} for stream, offset in moved.items()],
    )
    return Stored(cursors, frozenset(known_runs))


def _heard(connection: Connection, node: str, sync: Sync, now: datetime) -> None:
    row = {
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
    }
    upsert(connection, tables.nodes, [row], keep=("first_seen_at", "cordoned"))


def _cursors(connection: Connection, node: str, streams: Sequence[str]) -> dict[str, int]:
    c = tables.cursors.c
    found = connection.execute(
        select(c.stream, c.offset).where(c.node == node, c.stream.in_(streams))
    )
    stored = dict(found.all())
    return {stream: stored.get(stream, 0) for stream in streams}


def _placed(connection: Connection, node: str, sync: Sync) -> set[tuple[str, int, int]]:
    """Return (run, generation, rank) of the ranks that were given to this node, among those it
    speaks of.
    """
    keys = {
        key[:2] for batch in sync.batches if (key := parse_rank_stream(batch.stream)) is not None
    }
    keys |= {(running.run, running.generation) for running in sync.running}
    c = tables.ranks.c
    placed = set()
    for run, generation in keys:
        query = select(c.rank).where(c.run == run, c.generation == generation, c.node == node)
        placed |= {(run, generation, rank) for (rank,) in connection.execute(query)}
    return placed


def _runs_named(batches: Sequence[Batch]) -> set[str]:
    named = {key[0] for batch in batches if (key := parse_rank_stream(batch.stream)) is not None}
    for batch in batches:
        if is_agent_stream(batch.stream):
            named |= {
                run
                for event in batch.events
                if isinstance(run := event.data.get("run"), str) and "\0" not in run
            }
    return named


def _store_rank_batch(
    connection: Connection, node: str, key: tuple[str, int, int], batch: Batch, now: datetime
) -> None:
    run, generation, rank = key
    if batch.samples is not None and batch.samples.steps:
        _store_samples(connection, key, batch.samples, now)
    for event in batch.events:
        told = Told(
            run,
            generation,
            rank,
            node,
            f"rank {rank} on {node}",
            event.kind,
            event.at,
            _clean(event),
        )
        effects.take_effect(connection, told, now=now)
        _record(connection, told)


def _store_samples(
    connection: Connection, key: tuple[str, int, int], told: Columns, now: datetime
) -> None:
    run, generation, rank = key
    rows = chunks.rows_of(told.steps, told.at, told.values)
    samples.append(connection, run, generation, rank, rows)
    if rank == 0 and "loss" in rows.values:
        _tell_checkpoints(connection, run, generation, rows)
    first, last = min(told.steps), max(told.steps)
    r, a = tables.ranks.c, tables.attempts.c
    connection.execute(
        update(tables.ranks)
        .where(r.run == run, r.generation == generation, r.rank == rank)
        .values(last_step=last, last_seen_at=now)
    )
    of_attempt = (a.run == run, a.generation == generation)
    connection.execute(
        update(tables.attempts)
        .where(*of_attempt, func.coalesce(a.first_step, first + 1) > first)
        .values(first_step=first)
    )
    connection.execute(
        update(tables.attempts)
        .where(*of_attempt, func.coalesce(a.last_step, last - 1) < last)
        .values(last_step=last)
    )


def _tell_checkpoints(connection: Connection, run: str, generation: int, rows: chunks.Rows) -> None:
    """Give the loss of its step to a checkpoint that was committed before its sample came."""
    c = tables.checkpoints.c
    waiting = connection.execute(
        select(c.id, c.step).where(
            c.run == run,
            c.generation == generation,
            c.loss.is_(None),
            c.step.between(int(rows.steps[0]), int(rows.steps[-1])),
        )
    )
    losses = dict(zip(rows.steps.tolist(), rows.values["loss"].tolist(), strict=True))
    for checkpoint, step in waiting.all():
        loss = losses.get(step)
        if loss is not None and not is_missing(loss):
            connection.execute(
                update(tables.checkpoints).where(c.id == checkpoint).values(loss=number_word(loss))
            )


def _store_agent_events(
    connection: Connection,
    node: str,
    boot: str,
    events: Sequence[Event],
    known_runs: set[str],
    now: datetime,
) -> None:
    for event in events:
        data = _clean(event)
        run, generation = data.get("run"), whole(data.get("generation"))
        known = isinstance(run, str) and run in known_runs
        told = Told(
            run if known and _has_ranks(connection, node, run, generation) else None,
            generation,
            whole(data.get("rank")),
            node,
            f"agent {node}",
            event.kind,
            event.at,
            data,
            boot,
        )
        for_run = effects.take_effect(connection, told, now=now)
        if (
            for_run is not None
            and for_run not in known_runs
            and history.touch(connection, for_run, now)
        ):
            known_runs.add(for_run)
        _record(connection, told)


def _has_ranks(connection: Connection, node: str, run: Any, generation: int | None) -> bool:
    """Return whether this node is or was given ranks of that generation: of others it cannot
    speak.
    """
    c = tables.ranks.c
    query = select(c.rank).where(c.run == run, c.generation == generation, c.node == node).limit(1)
    return generation is not None and connection.scalar(query) is not None


def _store_level(
    connection: Connection,
    node: str,
    boot: str,
    running: Running,
    placed: set[tuple[str, int, int]],
    now: datetime,
) -> bool:
    """Store what runs; return whether that is news for the run."""
    run, generation = running.run, running.generation
    mine = [
        rank
        for of_run, of_generation, rank in placed
        if (of_run, of_generation) == (run, generation)
    ]
    if not mine:
        return False
    c = tables.ranks.c
    alive = [rank for rank in running.ranks if rank in mine]
    of_generation = (c.run == run, c.generation == generation, c.node == node)
    news = False
    if alive:
        connection.execute(
            update(tables.ranks).where(*of_generation, c.rank.in_(alive)).values(last_seen_at=now)
        )
        new = connection.execute(
            select(c.rank, c.state).where(*of_generation, c.rank.in_(alive), c.boot.is_(None))
        ).all()
        for rank, state in new:
            connection.execute(
                update(tables.ranks)
                .where(*of_generation, c.rank == rank)
                .values(
                    state="started" if state == "assigned" else state,
                    pid=running.ranks[rank],
                    boot=boot,
                )
            )
            news = True
    if running.store and 0 in mine:
        a = tables.attempts.c
        told = update(tables.attempts).where(
            a.run == run,
            a.generation == generation,
            a.ended_at.is_(None),
            func.coalesce(a.store, "") != running.store,
        )
        news |= bool(connection.execute(told.values(store=storable(running.store)[:300])).rowcount)
    return news and history.touch(connection, run, now)


def _clean(event: Event) -> dict[str, Any]:
    data: dict[str, Any] = storable_tree(event.data)
    if len(repr(data)) > MAX_EVENT_DATA:
        return {key: value for key, value in data.items() if len(repr(value)) <= 1000}
    return data


def _record(connection: Connection, told: Told) -> None:
    history.record(
        connection,
        at=told.at,
        kind=told.kind,
        actor=told.actor,
        because=effects.sentence(told),
        run=told.run,
        generation=told.generation,
        data=told.data,
    )
