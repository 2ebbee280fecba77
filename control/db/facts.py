"""What nodes say, stored once: heartbeats, the batches of spool streams, and what runs where.

One transaction stores the syncs of a whole group of nodes (`control.group_commit`), with a number
of statements that hardly depends on how many they are. A batch counts only if it begins where the
stored cursor of its stream stands; cursor and rows move together, so a batch that is sent twice,
late or again after a restore is stored once. The nodes' rows come first and keep two syncs of one
node apart; then the runs' rows, both in the order of their names, so that two control planes never
wait for each other in a circle. What a superseded generation says is stored as history;
`control.db.effects` sees to it that it changes no run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from sqlalchemy import Connection, select, update

from control.db import effects, history, restored, tables, timelines
from control.db.effects import Told
from control.db.fleet import heartbeats, levels
from control.db.fleet.heartbeats import Described
from control.db.fleet.levels import Key, Place
from control.db.samples import chunks, samples
from control.db.samples.chunks import Rows
from control.db.sql.among import among
from control.db.sql.upsert import upsert
from control.db.sql.values import number_word, storable_tree, whole
from control.db.timelines import Packed
from trainmaster.facts import Batch, Event
from trainmaster.ids import is_agent_stream, parse_rank_stream
from trainmaster.spool import is_missing
from trainmaster.wire import Sync

MAX_EVENT_DATA = 64 << 10


@dataclass(frozen=True, slots=True)
class Said:
    """One sync of one node, its samples and timelines read."""

    node: str
    sync: Sync
    rows: Mapping[int, Rows]
    timelines: Mapping[int, Sequence[Packed]] = field(default_factory=dict)

    @classmethod
    def of(cls, node: str, sync: Sync) -> Self:
        """Decode what `node` says; the rows are those of the batches at these positions.

        Raises:
            SpecError: packed samples that cannot be samples, or timelines that cannot be read.
        """
        rows, told_timelines = {}, {}
        for position, batch in enumerate(sync.batches):
            if batch.packed is not None:
                rows[position] = chunks.rows_of_packed(batch.packed)
            elif batch.samples is not None:
                told = batch.samples
                rows[position] = chunks.rows_of(told.steps, told.at, told.values)
            if batch.timelines:
                told_timelines[position] = timelines.read_packed(batch.timelines)
        found = {at: each for at, each in rows.items() if len(each.steps)}
        return cls(node, sync, found, told_timelines)


@dataclass(frozen=True, slots=True)
class Stored:
    """What came of a group of syncs.

    Attributes:
        cursors: node -> up to where each stream that it named is stored; streams that are not the
            node's to tell are left out.
        touched: the runs of which there is news.
        described: what was written of nodes, for `heartbeats.store` once this is committed.
    """

    cursors: Mapping[str, Mapping[str, int]]
    touched: frozenset[str]
    described: Mapping[str, Described]


@dataclass(slots=True)
class _Batch:
    """A batch that is stored now."""

    said: Said
    batch: Batch
    key: Key | None
    rows: Rows | None
    timelines: Sequence[Packed] = ()


@dataclass(slots=True)
class _Group:
    """One transaction on its way: what it works with and what it gathers."""

    connection: Connection
    now: datetime
    known_runs: set[str] = field(default_factory=set)
    events: list[Told] = field(default_factory=list)


def store(
    connection: Connection,
    said: Sequence[Said],
    *,
    now: datetime,
    stored: Mapping[str, Described] | None = None,
) -> Stored:
    """Store what the nodes say; each may stand in `said` once.

    Args:
        stored: what earlier, committed calls described of nodes.
    """
    said = sorted(said, key=lambda each: each.node)
    by_node = {each.node: each.sync for each in said}
    assert len(by_node) == len(said), "two syncs of one node cannot be stored at once"
    described = heartbeats.store(connection, by_node, stored or {}, now=now)
    placed = levels.placed(connection, by_node)
    restored.note_unknown(connection, levels.unplaced(by_node, placed), now=now)
    cursors = _cursors(connection, said)
    fresh = [batch for each in said for batch in _fresh(each, cursors[each.node], placed)]
    group = _Group(connection, now)
    # Samples alone hasten no turn: a run that trains has one each second anyway.
    news = [batch for batch in fresh if batch.batch.events]
    named = sorted({run for batch in news for run in _runs_named(batch)})
    group.known_runs = history.touch_all(connection, named, now)
    ranks = [batch for batch in fresh if batch.key is not None]
    _store_samples(group, [batch for batch in ranks if batch.rows is not None])
    timelines.store(
        connection,
        [(batch.key, batch.timelines) for batch in ranks if batch.key and batch.timelines],
    )
    # What ranks said comes before what their agent says of their end.
    for batch in ranks:
        _take_rank_events(group, batch)
    for batch in fresh:
        if batch.key is None:
            _take_agent_events(group, batch)
    group.known_runs |= levels.store(connection, by_node, placed, now=now)
    history.record_all(connection, [_as_event(told) for told in group.events])
    moved = {(batch.said.node, batch.batch.stream): batch.batch.to_offset for batch in fresh}
    upsert(
        connection,
        tables.cursors,
        [
            {"node": node, "stream": stream, "offset": offset}
            for (node, stream), offset in moved.items()
        ],
    )
    return Stored(cursors, frozenset(group.known_runs), described)


def _cursors(connection: Connection, said: Sequence[Said]) -> dict[str, dict[str, int]]:
    asked = {(each.node, batch.stream) for each in said for batch in each.sync.batches}
    cursors: dict[str, dict[str, int]] = {each.node: {} for each in said}
    for node, stream in asked:
        cursors[node][stream] = 0
    if asked:
        c = tables.cursors.c
        query = select(c.node, c.stream, c.offset).where(
            among(connection, (c.node, c.stream), sorted(asked))
        )
        for node, stream, offset in connection.execute(query):
            cursors[node][stream] = offset
    return cursors


def _fresh(
    said: Said, cursors: dict[str, int], placed: Mapping[tuple[str, Key], Place]
) -> list[_Batch]:
    """Return the batches that are new, and move `cursors` over them."""
    fresh = []
    for position, batch in enumerate(said.sync.batches):
        key = parse_rank_stream(batch.stream)
        known = is_agent_stream(batch.stream) or (key is not None and (said.node, key) in placed)
        if not known:
            cursors.pop(batch.stream, None)
        elif batch.from_offset == cursors[batch.stream] and batch.to_offset > batch.from_offset:
            cursors[batch.stream] = batch.to_offset
            rows = said.rows.get(position) if key is not None else None
            recorded = said.timelines.get(position, ()) if key is not None else ()
            fresh.append(_Batch(said, batch, key, rows, recorded))
    return fresh


def _runs_named(batch: _Batch) -> set[str]:
    if batch.key is not None:
        return {batch.key[0]}
    return {
        run
        for event in batch.batch.events
        if isinstance(run := event.data.get("run"), str) and "\0" not in run
    }


def _store_samples(group: _Group, batches: Sequence[_Batch]) -> None:
    told = [(*batch.key, batch.rows) for batch in batches if batch.key and batch.rows]
    if not told:
        return
    samples.append_many(group.connection, told)
    last_steps: dict[Key, int] = {}
    spans: dict[tuple[str, int], tuple[int, int]] = {}
    for run, generation, rank, rows in told:
        first, last = int(rows.steps.min()), int(rows.steps.max())
        last_steps[run, generation, rank] = last
        before = spans.get((run, generation), (first, last))
        spans[run, generation] = min(before[0], first), max(before[1], last)
    levels.seen_stepping(group.connection, last_steps, now=group.now)
    levels.widen(group.connection, spans)
    _tell_checkpoints(group.connection, told)


def _tell_checkpoints(connection: Connection, told: Sequence[tuple[str, int, int, Rows]]) -> None:
    """Give the loss of its step to a checkpoint that was committed before its sample came."""
    losses = {
        (run, generation): rows
        for run, generation, rank, rows in told
        if rank == 0 and "loss" in rows.values
    }
    if not losses:
        return
    c = tables.checkpoints.c
    waiting = connection.execute(
        select(c.id, c.run, c.generation, c.step).where(
            among(connection, (c.run, c.generation), list(losses)), c.loss.is_(None)
        )
    ).all()
    for checkpoint, run, generation, step in waiting:
        rows = losses[run, generation]
        found = rows.values["loss"][rows.steps == step]
        if len(found) and not is_missing(loss := float(found[0])):
            connection.execute(
                update(tables.checkpoints).where(c.id == checkpoint).values(loss=number_word(loss))
            )


def _take_rank_events(group: _Group, batch: _Batch) -> None:
    assert batch.key is not None
    (run, generation, rank), node = batch.key, batch.said.node
    for event in batch.batch.events:
        actor = f"rank {rank} on {node}"
        told = Told(run, generation, rank, node, actor, event.kind, event.at, _clean(event))
        effects.take_effect(group.connection, told, now=group.now)
        group.events.append(told)


def _take_agent_events(group: _Group, batch: _Batch) -> None:
    node, boot = batch.said.node, batch.said.sync.boot
    for event in batch.batch.events:
        data = _clean(event)
        run, generation = data.get("run"), whole(data.get("generation"))
        known = isinstance(run, str) and run in group.known_runs
        told = Told(
            run if known and _has_ranks(group.connection, node, run, generation) else None,
            generation,
            whole(data.get("rank")),
            node,
            f"agent {node}",
            event.kind,
            event.at,
            data,
            boot,
        )
        for_run = effects.take_effect(group.connection, told, now=group.now)
        if for_run is not None and for_run not in group.known_runs:
            group.known_runs |= history.touch_all(group.connection, [for_run], group.now)
        group.events.append(told)


def _has_ranks(connection: Connection, node: str, run: Any, generation: int | None) -> bool:
    """Return whether this node is or was given ranks of that generation: of others it cannot
    speak.
    """
    c = tables.ranks.c
    query = select(c.rank).where(c.run == run, c.generation == generation, c.node == node).limit(1)
    return generation is not None and connection.scalar(query) is not None


def _clean(event: Event) -> dict[str, Any]:
    data: dict[str, Any] = storable_tree(event.data)
    if len(repr(data)) > MAX_EVENT_DATA:
        return {key: value for key, value in data.items() if len(repr(value)) <= 1000}
    return data


def _as_event(told: Told) -> history.Recorded:
    return history.Recorded(
        at=told.at,
        kind=told.kind,
        actor=told.actor,
        because=effects.sentence(told),
        run=told.run,
        generation=told.generation,
        data=effects.shown(told),
    )
