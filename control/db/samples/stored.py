"""What is stored of metrics, in whichever form, put together: the chunks of the tail, the blocks,
and what was rolled up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, and_, false, or_, select

from control.db.samples import blocks, chunks, series
from control.db.samples.chunks import Rows
from control.db.samples.segments import Segment
from control.db.samples.series import Told
from control.db.tables import sample_blocks, sample_chunks

OVER_RANKS = -1
"""The rank under which rolled-up reductions over ranks are stored: one column per kind."""


def within(table: Table, segments: Sequence[Segment]) -> ColumnElement[bool]:
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
        .where(c.run == run, within(sample_chunks, segments))
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
            within(sample_blocks, segments),
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
