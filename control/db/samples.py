"""Samples in SQL: append and read. With `control.db.sealing` and `control.db.rollups`, which
rewrite what is old, the only module that knows in which form they are stored.

What comes in is a chunk: some rows of one rank with all their columns (`control.db.chunks`). Chunks
of the tail are joined and then sealed into blocks, one row per column (`control.db.blocks`); long
after the run some series are rolled up. A step that was stored twice counts as it came first: a
block's rows before any chunk's, an older chunk's before a newer one's. Readers ask by lineage
(`control.db.segments`), so a step that was redone after a rollback is there once, unless everything
is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from sqlalchemy import ColumnElement, Connection, Table, and_, false, func, or_, select, true

from control.db import blocks, chunks, series
from control.db.bulk import insert_many
from control.db.chunks import Rows
from control.db.segments import Segment
from control.db.series import TOKENS_PER_S, Series, Told
from control.db.tables import sample_blocks, sample_chunks
from trainmaster.metrics import Reduce

__all__ = [
    "OVER_RANKS",
    "TOKENS_PER_S",
    "Series",
    "append",
    "append_many",
    "chunk_row",
    "num_rows",
    "num_skipped",
    "read",
    "read_many",
    "told",
    "windows",
]

OVER_RANKS = -1
"""The rank under which rolled-up reductions over ranks are stored: one column per kind."""

CHUNK_COLUMNS = (
    "run",
    "generation",
    "rank",
    "first_step",
    "last_step",
    "num_rows",
    "num_skipped",
    "columns",
)


def append(connection: Connection, run: str, generation: int, rank: int, rows: Rows) -> None:
    """Store rows of one rank; see `append_many`."""
    append_many(connection, [(run, generation, rank, rows)])


def append_many(connection: Connection, items: Iterable[tuple[str, int, int, Rows]]) -> None:
    """Store rows of (run, generation, rank), in order. That they are new is the caller's business
    (cursors, `control.db.facts`); steps that are there already stay as they are.
    """
    insert_many(
        connection,
        sample_chunks,
        CHUNK_COLUMNS,
        [
            (run, generation, rank, *chunk_row(rows))
            for run, generation, rank, rows in items
            if len(rows.steps)
        ],
    )


def chunk_row(rows: Rows) -> tuple[int, int, int, int, bytes]:
    """Return `rows`, which are not none, as the columns of a chunk after its key."""
    if not bool(np.all(rows.steps[1:] > rows.steps[:-1])):
        rows = chunks.joined([rows])
    return (
        int(rows.steps[0]),
        int(rows.steps[-1]),
        len(rows.steps),
        count_skipped(rows),
        chunks.encode(rows),
    )


def count_skipped(rows: Rows) -> int:
    """Return how many steps were attempted and not applied."""
    applied = rows.values.get("applied")
    return 0 if applied is None else int(np.count_nonzero(applied == 0.0))


def read(
    connection: Connection,
    run: str,
    metric: str,
    segments: Sequence[Segment],
    *,
    rank: int | None = None,
    reduce: Reduce | None = None,
    live: int | None = None,
) -> Series:
    """Return one series along `segments`.

    Args:
        rank: that rank's values; None for the value of the run.
        reduce: how ranks become one value, where they differ; None as the metric is registered.
        live: the generation that is still written to. Its newest steps are left out of a reduction
            until every rank has told them.
    """
    return read_many(connection, run, [metric], segments, rank=rank, reduce=reduce, live=live)[
        metric
    ]


def read_many(
    connection: Connection,
    run: str,
    metrics: Sequence[str],
    segments: Sequence[Segment],
    *,
    rank: int | None = None,
    reduce: Reduce | None = None,
    live: int | None = None,
    waits_after: int = 0,
) -> dict[str, Series]:
    """Return several series along the same `segments` in one pass over what is stored; see
    `read`.

    Args:
        waits_after: a rank that has told nothing after this step is not waited for.
    """
    wanted = _sources(metrics)
    only_rank = _rank_read(wanted, rank)
    complete_to = None
    if live is not None and only_rank is None:
        complete_to = _complete_to(connection, run, live, waits_after)
    found_in = told(connection, run, wanted, segments, only_rank)
    parts: dict[str, list[Series]] = {metric: [] for metric in metrics}
    for segment in segments:
        of_generation = found_in.get(segment.generation)
        if of_generation is None:
            continue
        for metric in metrics:
            found = series.derive(
                metric,
                of_generation,
                segment,
                rank=rank,
                reduce=reduce,
                complete_to=complete_to if segment.generation == live else None,
            )
            if found is not None:
                parts[metric].append(found)
    return {metric: series.concatenated(found) for metric, found in parts.items()}


def windows(
    connection: Connection,
    run: str,
    metrics: Iterable[str],
    segments: Sequence[Segment],
    *,
    newest: int,
    last_step: int,
    live: int | None,
) -> dict[str, Series]:
    """Return the newest `newest` steps up to `last_step` of each metric, reduced over ranks as
    registered.
    """
    after = last_step - newest
    recent = [
        Segment(each.generation, max(each.after_step, after), each.last_step)
        for each in segments
        if each.last_step > after
    ]
    # A rank that cannot be heard for longer must not blind the rules.
    return read_many(connection, run, list(metrics), recent, live=live, waits_after=after)


def num_skipped(connection: Connection, run: str, segments: Sequence[Segment]) -> int:
    """Return how many steps of the lineage were attempted and not applied."""
    pieces: list[tuple[int, int, int, int]] = []
    for table in (sample_chunks, sample_blocks):
        c = table.c
        query = select(c.generation, c.first_step, c.last_step, c.num_skipped).where(
            c.run == run, c.rank == 0, c.num_skipped > 0, _within(table, segments)
        )
        if table is sample_blocks:
            query = query.where(c.metric == "applied")
        pieces += [tuple(row) for row in connection.execute(query)] if segments else []
    pieces.sort()
    total = 0
    for segment in segments:
        reached = segment.after_step
        mine = [piece for piece in pieces if piece[0] == segment.generation]
        for position, (_, first, last, count) in enumerate(mine):
            apart = position + 1 == len(mine) or mine[position + 1][1] > last
            if first > reached and last <= segment.last_step and apart:
                total += count
            elif min(last, segment.last_step) > reached:
                cut = Segment(
                    segment.generation, max(reached, first - 1), min(last, segment.last_step)
                )
                applied = read(connection, run, "applied", [cut], rank=0).values
                total += int(np.count_nonzero(applied == 0.0))
            reached = max(reached, last)
    return total


def num_rows(
    connection: Connection,
    run: str,
    metric: str,
    segments: Sequence[Segment],
    *,
    rank: int | None = None,
) -> int:
    """Return how many rows are stored of what a series is read from. While nothing comes late and
    nothing is rolled up, it does not change for steps that are past.
    """
    if not segments:
        return 0
    wanted = _sources([metric])
    only_rank = _rank_read(wanted, rank)
    total = 0
    for table in (sample_chunks, sample_blocks):
        c = table.c
        asked = [c.run == run, *([] if only_rank is None else [c.rank == only_rank])]
        if table is sample_blocks:
            asked.append(c.metric.in_([blocks.STEP, *wanted]))
            asked.append(or_(c.metric == blocks.STEP, c.rolled_up))
        inside = _inside(table, segments)
        total += (
            connection.scalar(select(func.coalesce(func.sum(c.num_rows), 0)).where(*asked, inside))
            or 0
        )
        data = c["columns" if table is sample_chunks else "data"]
        packed = c.rolled_up if table is sample_blocks else true()
        cut = select(c.generation, packed, data).where(*asked, ~inside, _within(table, segments))
        for generation, is_chunk, stored in connection.execute(cut):
            steps = (
                chunks.decode(stored, ()).steps if is_chunk else blocks.decode(stored).view("<i8")
            )
            for segment in segments:
                if segment.generation == generation:
                    edges = [segment.after_step, segment.last_step]
                    start, end = np.searchsorted(steps, edges, side="right").tolist()
                    total += end - start
    return total


def _sources(metrics: Iterable[str]) -> list[str]:
    found = (source for metric in metrics for source in series.SOURCES.get(metric, (metric,)))
    return list(dict.fromkeys(found))


def _rank_read(wanted: Iterable[str], rank: int | None) -> int | None:
    if rank is not None:
        return rank
    return 0 if all(series.is_same_on_ranks(name) for name in wanted) else None


def _complete_to(connection: Connection, run: str, live: int, waits_after: int) -> int | None:
    """Return the newest step that every rank of a living generation has told, of those that have
    told one after `waits_after`; None where none has. Its newest rows are in chunks.
    """
    c = sample_chunks.c
    newest = (
        select(func.max(c.last_step).label("step"))
        .where(c.run == run, c.generation == live)
        .group_by(c.rank)
        .having(func.max(c.last_step) > waits_after)
        .subquery()
    )
    found: int | None = connection.scalar(select(func.min(newest.c.step)))
    return found


def _within(table: Table, segments: Sequence[Segment]) -> ColumnElement[bool]:
    """Whether a chunk or a column of a block reaches into a segment."""
    c = table.c
    return or_(
        false(),  # a run that has not begun has no segments
        *(
            and_(
                c.generation == each.generation,
                c.last_step > each.after_step,
                c.first_step <= each.last_step,
            )
            for each in segments
        ),
    )


def _inside(table: Table, segments: Sequence[Segment]) -> ColumnElement[bool]:
    """Whether all of it lies in a segment."""
    c = table.c
    return or_(
        *(
            and_(
                c.generation == each.generation,
                c.first_step > each.after_step,
                c.last_step <= each.last_step,
            )
            for each in segments
        )
    )


def told(
    connection: Connection,
    run: str,
    wanted: Sequence[str],
    segments: Sequence[Segment],
    rank: int | None,
) -> dict[int, dict[str, Told]]:
    """Return generation -> metric -> what is stored of it in its segment."""
    if not segments:
        return {}
    # Where both are not one snapshot (a write, on PostgreSQL), what is sealed in between is seen
    # twice, and then joined, rather than not at all.
    parts = _tail(connection, run, wanted, segments, rank)
    sealed, rolled = _sealed(connection, run, wanted, segments, rank)
    for key, found in sealed.items():
        parts[key] = [*found, *parts.get(key, ())]
    bounds = {each.generation: each for each in segments}
    exact: dict[int, dict[int, Rows]] = {}
    for (generation, of_rank), found in parts.items():
        rows = _cut(found, bounds[generation])
        if len(rows.steps):
            exact.setdefault(generation, {})[of_rank] = _filled(rows, wanted)
    generations = exact.keys() | {generation for generation, _, _ in rolled}
    return {
        generation: {
            metric: _told(
                metric,
                exact.get(generation, {}),
                {
                    of_rank: _cut(found, bounds[generation])
                    for (of_generation, of_rank, of_metric), found in rolled.items()
                    if (of_generation, of_metric) == (generation, metric)
                },
            )
            for metric in wanted
        }
        for generation in generations
    }


def _told(metric: str, exact: Mapping[int, Rows], rolled: Mapping[int, Rows]) -> Told:
    ranks = dict(exact)
    for rank, rows in rolled.items():
        if rank != OVER_RANKS:
            more = [_measured(exact[rank], metric)] if rank in exact else []
            ranks[rank] = chunks.joined([rows, *more])
    return Told(ranks, rolled.get(OVER_RANKS), frozenset(rolled.keys() - {OVER_RANKS}))


def _measured(rows: Rows, metric: str) -> Rows:
    column = rows.values[metric]
    known = ~chunks.missing(column)
    return Rows(rows.steps[known], rows.at[known], {metric: column[known]})


def _cut(parts: Sequence[Rows], segment: Segment) -> Rows:
    return chunks.between(chunks.joined(parts), segment.after_step, segment.last_step)


def _filled(rows: Rows, wanted: Sequence[str]) -> Rows:
    lacking = [name for name in wanted if name not in rows.values]
    if not lacking:
        return rows
    absent = chunks.absent(len(rows.steps))
    return Rows(rows.steps, rows.at, {**rows.values, **dict.fromkeys(lacking, absent)})


def _tail(
    connection: Connection,
    run: str,
    wanted: Sequence[str],
    segments: Sequence[Segment],
    rank: int | None,
) -> dict[tuple[int, int], list[Rows]]:
    """Return (generation, rank) -> rows of its chunks, the oldest chunk first."""
    c = sample_chunks.c
    query = (
        select(c.generation, c.rank, c.columns)
        .where(c.run == run, _within(sample_chunks, segments))
        .order_by(c.id)
    )
    if rank is not None:
        query = query.where(c.rank == rank)
    found: dict[tuple[int, int], list[Rows]] = {}
    for generation, of_rank, columns in connection.execute(query):
        found.setdefault((generation, of_rank), []).append(chunks.decode(columns, wanted))
    return found


_Sealed = dict[tuple[int, int], list[Rows]]
_RolledUp = dict[tuple[int, int, str], list[Rows]]


def _sealed(
    connection: Connection,
    run: str,
    wanted: Sequence[str],
    segments: Sequence[Segment],
    rank: int | None,
) -> tuple[_Sealed, _RolledUp]:
    """Return (generation, rank) -> rows of its blocks, and (generation, rank, metric) -> rows of
    what is rolled up.
    """
    c = sample_blocks.c
    query = (
        select(c.generation, c.rank, c.metric, c.first_step, c.rolled_up, c.data)
        .where(
            c.run == run,
            c.metric.in_([blocks.STEP, blocks.AT, *wanted]),
            _within(sample_blocks, segments),
        )
        .order_by(c.generation, c.rank, c.first_step)
    )
    if rank is not None:
        query = query.where(c.rank == rank)
    columns: dict[tuple[int, int, int], dict[str, Any]] = {}
    rolled: _RolledUp = {}
    for generation, of_rank, metric, first_step, rolled_up, data in connection.execute(query):
        if rolled_up:
            names = series.KINDS if of_rank == OVER_RANKS else (metric,)
            key = (generation, of_rank, metric)
            rolled.setdefault(key, []).append(chunks.decode(data, names))
        else:
            columns.setdefault((generation, of_rank, first_step), {})[metric] = data
    sealed: _Sealed = {}
    for (generation, of_rank, _), found in columns.items():
        sealed.setdefault((generation, of_rank), []).append(blocks.rows_of(found))
    return sealed, rolled
