"""Samples in SQL: append, read, compact. The only module that knows they are stored in chunks.

A chunk is written once and never changed; small ones of the live tail are later replaced by one
that holds the same rows. Readers ask by lineage (`control.db.segments`), so a step that was redone
after a rollback is there once, unless everything is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import Connection, and_, delete, func, insert, or_, select

from control.db import chunks
from control.db.chunks import Floats, Ints, Rows
from control.db.segments import Segment
from control.db.tables import sample_chunks
from trainmaster.metrics import BY_NAME, Reduce
from trainmaster.spool import MISSING

FULL_ROWS = 1024
"""Rows of a chunk that is not compacted further: 8 KiB a column."""

TOKENS_PER_S = "tokens_per_s"
_SOURCES = {TOKENS_PER_S: ("tokens", "step_time_s")}


@dataclass(frozen=True, slots=True)
class Series:
    """One metric in reading order: generation and step of each point, when it ended, and its
    value.
    """

    generations: Ints
    steps: Ints
    at: Floats
    values: Floats

    def __len__(self) -> int:
        return len(self.steps)


def append(connection: Connection, run: str, generation: int, rank: int, rows: Rows) -> None:
    """Store rows of one rank. That they are new is the caller's business (cursors,
    `control.db.facts`).
    """
    if len(rows.steps) == 0:
        return
    if not bool(np.all(rows.steps[1:] > rows.steps[:-1])):
        rows = chunks.joined([rows])
    connection.execute(
        insert(sample_chunks).values(run=run, generation=generation, rank=rank, **_row(rows))
    )


def _row(rows: Rows) -> dict[str, object]:
    applied = rows.values.get("applied")
    return {
        "first_step": int(rows.steps[0]),
        "last_step": int(rows.steps[-1]),
        "num_rows": len(rows.steps),
        "num_skipped": 0 if applied is None else int(np.count_nonzero(applied == 0.0)),
        "columns": chunks.encode(rows),
    }


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
) -> dict[str, Series]:
    """Return several series along the same `segments` in one pass over the chunks; see `read`."""
    wanted = list(
        dict.fromkeys(source for metric in metrics for source in _SOURCES.get(metric, (metric,)))
    )
    only_rank = (
        rank if rank is not None else 0 if all(_is_same_on_ranks(name) for name in wanted) else None
    )
    by_rank = _load(connection, run, wanted, segments, only_rank)
    parts: dict[str, list[Series]] = {metric: [] for metric in metrics}
    for segment in segments:
        ranks = by_rank.get(segment.generation, {})
        for metric in metrics:
            series = _derive(metric, ranks, segment, rank, reduce, segment.generation == live)
            if series is not None:
                parts[metric].append(series)
    return {metric: _concatenated(found) for metric, found in parts.items()}


def _derive(
    metric: str,
    ranks: Mapping[int, Rows],
    segment: Segment,
    rank: int | None,
    reduce: Reduce | None,
    is_live: bool,
) -> Series | None:
    if metric == TOKENS_PER_S:
        tokens = _one(ranks, "tokens", segment, rank, None, is_live)
        spent = _one(ranks, "step_time_s", segment, rank, "max", is_live)
        if tokens is None or spent is None:
            return None
        steps, left, right = np.intersect1d(
            tokens.steps, spent.steps, assume_unique=True, return_indices=True
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            values = tokens.values[left] / spent.values[right]
        values[chunks.missing(tokens.values[left]) | chunks.missing(spent.values[right])] = MISSING
        return Series(np.full(len(steps), segment.generation), steps, tokens.at[left], values)
    return _one(ranks, metric, segment, rank, reduce, is_live)


def _one(
    ranks: Mapping[int, Rows],
    metric: str,
    segment: Segment,
    rank: int | None,
    reduce: Reduce | None,
    is_live: bool,
) -> Series | None:
    if rank is None and _is_same_on_ranks(metric):
        rank = 0
    if rank is not None:
        rows = ranks.get(rank)
        if rows is None or len(rows.steps) == 0:
            return None
        return Series(
            np.full(len(rows.steps), segment.generation), rows.steps, rows.at, rows.values[metric]
        )
    if not ranks:
        return None
    kind = reduce or BY_NAME[metric].reduce
    steps, at, values = _reduced([(rows, rows.values[metric]) for rows in ranks.values()], kind)
    if is_live:
        complete = np.searchsorted(
            steps, min(int(rows.steps[-1]) for rows in ranks.values()), side="right"
        )
        steps, at, values = steps[:complete], at[:complete], values[:complete]
    return Series(np.full(len(steps), segment.generation), steps, at, values)


def _reduced(columns: Sequence[tuple[Rows, Floats]], kind: Reduce) -> tuple[Ints, Floats, Floats]:
    """Reduce over ranks, step by step: what was not measured does not count, a measured NaN
    does.
    """
    steps = np.unique(np.concatenate([rows.steps for rows, _ in columns]))
    matrix = np.full((len(columns), len(steps)), MISSING)
    at = np.zeros(len(steps))
    for row, (rows, values) in zip(matrix, columns, strict=True):
        where = np.searchsorted(steps, rows.steps)
        row[where] = values
        at[where] = np.maximum(at[where], rows.at)
    unknown = chunks.missing(matrix)
    if kind in {"max", "min"}:
        filled = np.where(unknown, -np.inf if kind == "max" else np.inf, matrix)
        # maximum and minimum hand on a NaN; fmax would lose it.
        reduced = np.maximum.reduce(filled) if kind == "max" else np.minimum.reduce(filled)
    else:
        with np.errstate(invalid="ignore", divide="ignore"):
            reduced = np.where(unknown, 0.0, matrix).sum(axis=0)
            if kind != "sum":
                reduced = reduced / (~unknown).sum(axis=0)
    reduced[unknown.all(axis=0)] = MISSING
    return steps, at, reduced


def _is_same_on_ranks(metric: str) -> bool:
    known = BY_NAME.get(metric)
    return known is not None and known.scope == "run"


def _concatenated(parts: Sequence[Series]) -> Series:
    if not parts:
        empty = np.array([], dtype=np.int64)
        return Series(empty, empty, np.array([]), np.array([]))
    return Series(
        np.concatenate([part.generations for part in parts]),
        np.concatenate([part.steps for part in parts]),
        np.concatenate([part.at for part in parts]),
        np.concatenate([part.values for part in parts]),
    )


def _load(
    connection: Connection,
    run: str,
    wanted: Sequence[str],
    segments: Sequence[Segment],
    rank: int | None,
) -> dict[int, dict[int, Rows]]:
    """Return generation -> rank -> rows of its segment; ranks without rows are left out."""
    if not segments:
        return {}
    c = sample_chunks.c
    within = or_(
        *(
            and_(
                c.generation == each.generation,
                c.last_step > each.after_step,
                c.first_step <= each.last_step,
            )
            for each in segments
        )
    )
    query = (
        select(c.generation, c.rank, c.columns)
        .where(c.run == run, within)
        .order_by(c.first_step, c.id)
    )
    if rank is not None:
        query = query.where(c.rank == rank)
    parts: dict[tuple[int, int], list[Rows]] = {}
    for generation, of_rank, columns in connection.execute(query):
        parts.setdefault((generation, of_rank), []).append(chunks.decode(columns, wanted))
    bounds = {each.generation: each for each in segments}
    loaded: dict[int, dict[int, Rows]] = {}
    for (generation, of_rank), found in parts.items():
        segment = bounds[generation]
        rows = chunks.between(chunks.joined(found), segment.after_step, segment.last_step)
        if len(rows.steps):
            loaded.setdefault(generation, {})[of_rank] = rows
    return loaded


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
    return read_many(connection, run, list(metrics), recent, live=live)


def num_skipped(connection: Connection, run: str, segments: Sequence[Segment]) -> int:
    """Return how many steps of the lineage were attempted and not applied."""
    c = sample_chunks.c
    total = 0
    for segment in segments:
        of_segment = (
            c.run == run,
            c.generation == segment.generation,
            c.rank == 0,
            c.num_skipped > 0,
        )
        inside = and_(c.first_step > segment.after_step, c.last_step <= segment.last_step)
        total += (
            connection.scalar(
                select(func.coalesce(func.sum(c.num_skipped), 0)).where(*of_segment, inside)
            )
            or 0
        )
        cut = and_(~inside, c.last_step > segment.after_step, c.first_step <= segment.last_step)
        for (columns,) in connection.execute(select(c.columns).where(*of_segment, cut)):
            rows = chunks.between(
                chunks.decode(columns, ["applied"]), segment.after_step, segment.last_step
            )
            total += int(np.count_nonzero(rows.values["applied"] == 0.0))
    return total


def compactable(connection: Connection, *, limit: int = 100) -> list[tuple[str, int, int]]:
    """Return (run, generation, rank) of those with many small chunks."""
    c = sample_chunks.c
    query = (
        select(c.run, c.generation, c.rank)
        .where(c.num_rows < FULL_ROWS)
        .group_by(c.run, c.generation, c.rank)
        .having(func.count() > 8)
        .order_by(func.count().desc())
        .limit(limit)
    )
    return [(run, generation, rank) for run, generation, rank in connection.execute(query)]


def compact(connection: Connection, run: str, generation: int, rank: int) -> int:
    """Replace the small chunks of one rank by larger ones with the same rows; return how many are
    gone.
    """
    c = sample_chunks.c
    of_rank = and_(c.run == run, c.generation == generation, c.rank == rank, c.num_rows < FULL_ROWS)
    found = connection.execute(
        select(c.id, c.num_rows, c.columns).where(of_rank).order_by(c.first_step, c.id)
    ).all()
    gone = 0
    batch: list[tuple[int, Rows]] = []
    num_rows = 0
    for position, (chunk, rows, columns) in enumerate(found):
        batch.append((chunk, chunks.decode(columns, chunks.names(columns))))
        num_rows += rows
        if num_rows >= FULL_ROWS or position == len(found) - 1:
            gone += _replace(connection, (run, generation, rank), batch)
            batch, num_rows = [], 0
    return gone


def _replace(
    connection: Connection, key: tuple[int | str, ...], batch: Sequence[tuple[int, Rows]]
) -> int:
    if len(batch) < 2:
        return 0
    c = sample_chunks.c
    ids = [chunk for chunk, _ in batch]
    removed = connection.execute(delete(sample_chunks).where(c.id.in_(ids))).rowcount
    assert removed == len(ids), f"chunks {ids} changed while they were compacted"
    run, generation, rank = key
    merged = chunks.joined([rows for _, rows in batch])
    connection.execute(
        insert(sample_chunks).values(run=run, generation=generation, rank=rank, **_row(merged))
    )
    return len(ids) - 1
