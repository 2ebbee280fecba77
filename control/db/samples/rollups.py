"""Rolls up the samples of runs that ended long ago, or removes them: by `samples.ageing`.

What a run is judged by stays exact as long as its ranks' series are kept: the metrics that are the
same on all ranks. Of the others each rank keeps a choice of points, and a choice is stored reduced
over the ranks, since points that ranks chose for themselves cannot be. What goodput and skipped
steps are counted from (`ACCOUNTS`) stays exact for ever; it is little.

Each transaction rewrites one series of one generation, or those of one rank; whoever is interrupted
goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from sqlalchemy import ColumnElement, Connection, and_, delete, func, select

from control.db import history
from control.db.samples import blocks, chunks, samples, sealing, series, stored
from control.db.samples.ageing import MOST_POINTS, Ages, Stage
from control.db.samples.chunks import Rows
from control.db.samples.downsample import thinned
from control.db.samples.segments import Segment
from control.db.samples.series import Series
from control.db.samples.stored import OVER_RANKS
from control.db.sql.bulk import insert_many
from control.db.sql.upsert import upsert
from control.db.tables import attempts, runs, sample_ageing, sample_blocks, sample_chunks
from control.lineage import ENDLESS
from trainmaster.errors import ConflictError

ACCOUNTS = ("applied", "tokens", "step_time_s", "data_s", "checkpoint_stall_s")
"""Metrics of rank 0 that stay exact."""

_AT_ONCE = 8_000_000
"""Values over ranks that are reduced at once: some 64 MB."""

_ALL = sealing.Sizes(least_rows=1)

Open = Callable[[], AbstractContextManager[Connection]]


@dataclass(frozen=True, slots=True)
class Old:
    """A generation whose samples are due.

    Attributes:
        stage: how far they have come; None where nothing has been done.
        target: where they are to come.
    """

    run: str
    generation: int
    stage: Stage | None
    target: Stage


def due(connection: Connection, ages: Ages, *, now: datetime, limit: int = 100) -> list[Old]:
    """Return generations whose samples are old enough for a stage that they have not reached."""
    a, r, g = attempts.c, runs.c, sample_ageing.c
    found: dict[tuple[str, int], Old] = {}
    for target, before in ages.ended_before(now).items():
        reached = func.coalesce(g.stage, 0)
        open_ = reached < target
        if target == Stage.ROLLED_UP:
            open_ = and_(open_, reached != Stage.SHORT)
        query = (
            select(a.run, a.generation, g.stage)
            .join(runs, r.id == a.run)
            .outerjoin(sample_ageing, and_(g.run == a.run, g.generation == a.generation))
            .where(r.ended_at < before, open_)
            .order_by(r.ended_at, a.run, a.generation)
            .limit(limit)
        )
        for run, generation, stage in connection.execute(query):
            reached_ = None if stage is None else Stage(stage)
            found.setdefault((run, generation), Old(run, generation, reached_, target))
    return list(found.values())


def age(read: Open, write: Open, old: Old, *, now: datetime) -> Iterator[None]:
    """Bring the samples of a generation to its target, yielding after each transaction.

    Raises:
        ConflictError: the run lives again, or another control plane does the same.
    """
    stage = old.stage
    if stage in {None, Stage.SHORT}:
        yield from _seal(read, write, old)
        with read() as connection:
            longest = _longest(connection, old)
        if longest <= MOST_POINTS and old.target == Stage.ROLLED_UP:
            with write() as connection:
                _reach(connection, old, Stage.SHORT, now)
            yield
            return
        yield from _reduce(read, write, old)
        with write() as connection:
            _reach(connection, old, Stage.REDUCED, now)
        yield
    with read() as connection:
        ranks = _ranks(connection, old)
    removes = old.target == Stage.REMOVED
    for rank in ranks:
        if removes and rank != 0:
            with write() as connection:
                _own(connection, old)
                for table in (sample_blocks, sample_chunks):
                    c = table.c
                    connection.execute(delete(table).where(_of(table, old), c.rank == rank))
            yield
        else:
            yield from _roll_up(read, write, old, rank, removes=removes)
    with write() as connection:
        _reach(connection, old, old.target, now)
        if ranks:
            _tell(connection, old, ranks, now)
    yield


def _of(table: object, old: Old) -> ColumnElement[bool]:
    c = table.c  # type: ignore[attr-defined]
    return and_(c.run == old.run, c.generation == old.generation)


def _own(connection: Connection, old: Old) -> None:
    """Keep the run as it is for this transaction."""
    c = runs.c
    ended_at = connection.scalar(select(c.ended_at).where(c.id == old.run).with_for_update())
    if ended_at is None:
        raise ConflictError(f"run {old.run} lives again: its samples stay")


def _reach(connection: Connection, old: Old, stage: Stage, now: datetime) -> None:
    _own(connection, old)
    row = {"run": old.run, "generation": old.generation, "stage": int(stage), "changed_at": now}
    upsert(connection, sample_ageing, [row])


def _tell(connection: Connection, old: Old, ranks: Sequence[int], now: datetime) -> None:
    removed = old.target == Stage.REMOVED
    what = (
        "of the series of its ranks nothing is kept but what was stored over all ranks"
        if removed
        else f"of each series of its ranks {MOST_POINTS:,} points are kept"
    )
    history.record(
        connection,
        at=now,
        kind="rank_samples_removed" if removed else "rank_samples_rolled_up",
        actor="control",
        because=f"the run ended long ago: {what}",
        run=old.run,
        generation=old.generation,
        data={"ranks": len(ranks), "points": MOST_POINTS},
    )


def _ranks(connection: Connection, old: Old) -> list[int]:
    found: set[int] = set()
    for table in (sample_blocks, sample_chunks):
        query = select(table.c.rank).where(_of(table, old)).distinct()
        found |= set(connection.scalars(query))
    return sorted(found - {OVER_RANKS})


def _seal(read: Open, write: Open, old: Old) -> Iterator[None]:
    c = sample_chunks.c
    with read() as connection:
        query = select(c.rank).where(_of(sample_chunks, old)).distinct().order_by(c.rank)
        ranks = connection.scalars(query).all()
    for rank in ranks:
        with write() as connection:
            _own(connection, old)
            sealing.tend(
                connection, sealing.Tail(old.run, old.generation, rank), seals=True, sizes=_ALL
            )
        yield


def _longest(connection: Connection, old: Old) -> int:
    c = sample_blocks.c
    rows = func.sum(c.num_rows)
    of_rank = (
        select(rows)
        .where(_of(sample_blocks, old), c.metric == blocks.STEP)
        .group_by(c.rank)
        .order_by(rows.desc())
        .limit(1)
    )
    return connection.scalar(of_rank) or 0


def _metrics(connection: Connection, old: Old, rank: int | None = None) -> list[str]:
    """Return the metrics that are stored exactly."""
    c = sample_blocks.c
    query = select(c.metric).where(_of(sample_blocks, old), c.rolled_up.is_(False)).distinct()
    if rank is not None:
        query = query.where(c.rank == rank)
    return sorted(set(connection.scalars(query)) - {blocks.STEP, blocks.AT})


def _reduce(read: Open, write: Open, old: Old) -> Iterator[None]:
    """Store a choice of points of each metric, reduced over the ranks."""
    with read() as connection:
        metrics = [name for name in _metrics(connection, old) if not series.is_same_on_ranks(name)]
    for metric in metrics:
        with read() as connection:
            rows = _chosen_over_ranks(_over_ranks(connection, old, metric))
        with write() as connection:
            _own(connection, old)
            _replace(connection, old, OVER_RANKS, {metric: rows})
        yield


def _over_ranks(connection: Connection, old: Old, metric: str) -> Rows:
    c = sample_blocks.c
    spans = connection.execute(
        select(c.first_step, c.last_step)
        .where(_of(sample_blocks, old), c.metric == blocks.STEP)
        .order_by(c.first_step)
    ).all()
    most = max(1, _AT_ONCE // max(1, len(_ranks(connection, old))))
    last_step = max((last for _, last in spans), default=0)
    edges = sorted({first - 1 for first, _ in spans})
    parts: list[Rows] = []
    start = edges[0] if edges else 0
    while start < last_step:
        beyond = [edge for edge in edges if start < edge <= start + most]
        end = beyond[-1] if beyond else next((edge for edge in edges if edge > start), ENDLESS)
        told = stored.told(
            connection, old.run, [metric], [Segment(old.generation, start, end)], None
        )
        for by_metric in told.values():
            columns = [(rows, rows.values[metric]) for rows in by_metric[metric].by_rank.values()]
            if not columns:
                continue
            reduced = {kind: series.reduced(columns, kind) for kind in series.KINDS}
            steps, at, _ = reduced["mean"]
            parts.append(Rows(steps, at, {kind: reduced[kind][2] for kind in series.KINDS}))
        start = end
    return chunks.joined(parts) if parts else Rows(np.array([], np.int64), np.array([]), {})


def _chosen_over_ranks(rows: Rows) -> Rows:
    """Return a choice that keeps the extremes of the ranks' mean, highest and lowest."""
    kinds = ("mean", "max", "min")
    if len(rows.steps) <= MOST_POINTS:
        return rows
    kept = [_thinned(rows, kind, MOST_POINTS // len(kinds)) for kind in kinds]
    chosen = np.searchsorted(rows.steps, np.unique(np.concatenate(kept)))
    return Rows(
        rows.steps[chosen],
        rows.at[chosen],
        {kind: column[chosen] for kind, column in rows.values.items()},
    )


def _thinned(rows: Rows, name: str, points: int) -> chunks.Ints:
    generations = np.zeros(len(rows.steps), dtype=np.int64)
    return thinned(Series(generations, rows.steps, rows.at, rows.values[name]), points).steps


def _roll_up(read: Open, write: Open, old: Old, rank: int, *, removes: bool) -> Iterator[None]:
    chosen, gone = {}, []
    with read() as connection:
        exact = _metrics(connection, old, rank)
        for metric in exact:
            if rank == 0 and not _changes(metric, removes=removes):
                continue
            # Of rank 0 there remain, beside the accounts, the metrics for which it speaks.
            if not removes or series.is_same_on_ranks(metric):
                whole = [Segment(old.generation)]
                found = samples.read(connection, old.run, metric, whole, rank=rank)
                if len(found) <= MOST_POINTS:
                    continue
                found = thinned(found, MOST_POINTS)
                chosen[metric] = Rows(found.steps, found.at, {metric: found.values})
            gone.append(metric)
        if removes:
            rolled = _rolled(connection, old, rank)
            gone += [name for name in rolled if not series.is_same_on_ranks(name)]
    if set(gone) >= set(exact):
        gone += [blocks.STEP, blocks.AT]
    c = sample_blocks.c
    with write() as connection:
        _own(connection, old)
        connection.execute(
            delete(sample_blocks).where(_of(sample_blocks, old), c.rank == rank, c.metric.in_(gone))
        )
        _replace(connection, old, rank, chosen)
    yield


def _changes(metric: str, *, removes: bool) -> bool:
    if metric in ACCOUNTS:
        return False
    return removes or not series.is_same_on_ranks(metric)


def _rolled(connection: Connection, old: Old, rank: int) -> list[str]:
    c = sample_blocks.c
    query = select(c.metric).where(_of(sample_blocks, old), c.rank == rank, c.rolled_up).distinct()
    return list(connection.scalars(query))


def _replace(connection: Connection, old: Old, rank: int, by_metric: dict[str, Rows]) -> None:
    """Store rolled-up rows in place of those of the same name."""
    c = sample_blocks.c
    connection.execute(
        delete(sample_blocks).where(
            _of(sample_blocks, old), c.rank == rank, c.rolled_up, c.metric.in_(list(by_metric))
        )
    )
    insert_many(
        connection,
        sample_blocks,
        sealing.BLOCK_COLUMNS,
        [
            (
                old.run,
                old.generation,
                rank,
                metric,
                int(rows.steps[0]),
                int(rows.steps[-1]),
                len(rows.steps),
                0,
                True,
                chunks.encode(rows),
            )
            for metric, rows in by_metric.items()
            if len(rows.steps)
        ],
    )
