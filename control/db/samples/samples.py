"""Samples in SQL: append and read. In which form they are stored is known here, to `stored`, and to
`sealing` and `rollups`, which rewrite what is old.

What comes in is a chunk: some rows of one rank with all their columns (`chunks`). Chunks of the
tail are joined and then sealed into blocks, one row per column (`blocks`); long after the run some
series are rolled up. A step that was stored twice counts as it came first: a block's rows before
any chunk's, an older chunk's before a newer one's. Readers ask by lineage (`segments`), so a step
that was redone after a rollback is there once, unless everything is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from sqlalchemy import ColumnElement, Connection, Table, and_, func, or_, select, true

from control.db.samples import blocks, chunks, series, stored
from control.db.samples.chunks import Rows
from control.db.samples.segments import Segment
from control.db.samples.series import TOKENS_PER_S, Series
from control.db.samples.stored import within
from control.db.sql.bulk import insert_many
from control.db.tables import sample_blocks, sample_chunks
from trainmaster.metrics import Reduce

__all__ = [
    "TOKENS_PER_S",
    "Series",
    "append",
    "append_many",
    "chunk_row",
    "complete_to",
    "num_rows",
    "num_skipped",
    "read",
    "read_each",
    "read_many",
    "read_ranks",
    "windows",
]

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
    complete = None
    if live is not None and only_rank is None:
        complete = complete_to(connection, run, live, waits_after)
    found_in = stored.told(connection, run, wanted, segments, only_rank)
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
                complete_to=complete if segment.generation == live else None,
            )
            if found is not None:
                parts[metric].append(found)
    return {metric: series.concatenated(found) for metric, found in parts.items()}


def read_each(
    connection: Connection,
    run: str,
    wanted: Sequence[tuple[str, int | None]],
    segments: Sequence[Segment],
    *,
    live: int | None = None,
) -> list[Series]:
    """Return a series for each (metric, rank) that is wanted, in one pass over what is stored; see
    `read`.
    """
    sources = _sources(metric for metric, _ in wanted)
    ranks = {_rank_read(_sources([metric]), rank) for metric, rank in wanted}
    complete = None
    if live is not None and None in ranks:
        complete = complete_to(connection, run, live, 0)
    only_rank = next(iter(ranks)) if len(ranks) == 1 else None
    found_in = stored.told(connection, run, sources, segments, only_rank)
    parts: list[list[Series]] = [[] for _ in wanted]
    for segment in segments:
        of_generation = found_in.get(segment.generation)
        if of_generation is None:
            continue
        for (metric, rank), told in zip(wanted, parts, strict=True):
            found = series.derive(
                metric,
                of_generation,
                segment,
                rank=rank,
                reduce=None,
                complete_to=complete if segment.generation == live else None,
            )
            if found is not None:
                told.append(found)
    return [series.concatenated(told) for told in parts]


def read_ranks(
    connection: Connection, run: str, metrics: Sequence[str], segment: Segment
) -> dict[str, dict[int, Series]]:
    """Return metric -> rank -> what that rank told in `segment`, in one pass."""
    told = stored.told(connection, run, metrics, [segment], None).get(segment.generation, {})
    return {
        metric: {
            rank: series.Series(
                np.full(len(rows.steps), segment.generation),
                rows.steps,
                rows.at,
                rows.values[metric],
            )
            for rank, rows in sorted(told[metric].by_rank.items())
        }
        if metric in told
        else {}
        for metric in metrics
    }


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
    return read_many(connection, run, list(metrics), recent, live=live, waits_after=after)


def num_skipped(connection: Connection, run: str, segments: Sequence[Segment]) -> int:
    """Return how many steps of the lineage were attempted and not applied."""
    pieces: list[tuple[int, int, int, int]] = []
    for table in (sample_chunks, sample_blocks):
        c = table.c
        query = select(c.generation, c.first_step, c.last_step, c.num_skipped).where(
            c.run == run, c.rank == 0, c.num_skipped > 0, within(table, segments)
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
        cut = select(c.generation, packed, data).where(*asked, ~inside, within(table, segments))
        for generation, is_chunk, packed_rows in connection.execute(cut):
            steps = (
                chunks.decode(packed_rows, ()).steps
                if is_chunk
                else blocks.decode(packed_rows).view("<i8")
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


def complete_to(connection: Connection, run: str, live: int, waits_after: int) -> int | None:
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
