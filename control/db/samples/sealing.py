"""Rewrites samples that no longer change: small chunks become larger ones, and old rows leave them
for blocks. The rows stay the same; a step that was stored twice stays as it came first.

Several control planes may do this at once: whoever finds that what it read has been rewritten
meanwhile raises ConflictError, and nothing of it is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Connection, and_, case, delete, false, func, or_, select

from control.db.samples import blocks, chunks, samples
from control.db.samples.ageing import Stage
from control.db.samples.chunks import Rows
from control.db.sql.among import among, one_of
from control.db.sql.bulk import insert_many
from control.db.tables import attempts, sample_ageing, sample_blocks, sample_chunks, sample_sealing
from trainmaster.errors import ConflictError

BLOCK_COLUMNS = (
    "run",
    "generation",
    "rank",
    "metric",
    "first_step",
    "last_step",
    "num_rows",
    "num_skipped",
    "rolled_up",
    "data",
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """When there is something to do.

    Attributes:
        chunk_rows: rows of a chunk that is not joined to others any more.
        many_chunks: smaller chunks that are left alone.
        block_rows: rows of a block at least, while its attempt lives.
        tail_rows: newest rows of a living attempt that stay in chunks: what rules look at.
        least_rows: rows that are worth a block once their attempt has ended.
    """

    chunk_rows: int = 1024
    many_chunks: int = 8
    block_rows: int = 8192
    tail_rows: int = 1024
    least_rows: int = 512


SIZES = Sizes()


@dataclass(frozen=True, slots=True)
class Tail:
    """The chunks of one rank of a generation.

    Attributes:
        seals: whether it is long enough for rows to be sealed.
    """

    run: str
    generation: int
    rank: int
    seals: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class _Chunk:
    id: int
    first_step: int
    last_step: int
    num_rows: int


@dataclass(frozen=True, slots=True)
class Done:
    """What was done: chunks that are gone, and rows that were sealed."""

    chunks_gone: int = 0
    rows_sealed: int = 0


def may_seal(connection: Connection, *, now: datetime) -> bool:
    """Return whether every control plane that may still run knows blocks."""
    c = sample_sealing.c
    return connection.scalar(select(c.id).where(c.not_before <= now)) is not None


def due(
    connection: Connection, *, seals: bool, limit: int = 5000, sizes: Sizes = SIZES
) -> list[Tail]:
    """Return the tails in which there is something to do, the longest first.

    Args:
        seals: whether rows may be sealed now.
    """
    c, a, g = sample_chunks.c, attempts.c, sample_ageing.c
    small, rows = func.sum(case((c.num_rows < sizes.chunk_rows, 1), else_=0)), func.sum(c.num_rows)
    ended = and_(a.ended_at.is_not(None), func.coalesce(g.stage, 0) <= Stage.SHORT)
    is_long = or_(rows >= sizes.block_rows + sizes.tail_rows, and_(ended, rows >= sizes.least_rows))
    seals_now = is_long if seals else false()
    query = (
        select(c.run, c.generation, c.rank, case((seals_now, 1), else_=0))
        .join(attempts, and_(a.run == c.run, a.generation == c.generation))
        .outerjoin(sample_ageing, and_(g.run == c.run, g.generation == c.generation))
        .group_by(c.run, c.generation, c.rank, a.ended_at, g.stage)
        .having(or_(small > sizes.many_chunks, seals_now))
        .order_by(func.count().desc())
        .limit(limit)
    )
    return [
        Tail(run, generation, rank, bool(seals_it))
        for run, generation, rank, seals_it in connection.execute(query)
    ]


def tend(connection: Connection, tail: Tail, *, seals: bool, sizes: Sizes = SIZES) -> Done:
    """Seal what is old enough of a tail, or else join its small chunks.

    Raises:
        ConflictError: somebody else does the same.
    """
    groups = _groups(_held(connection, [tail]).get(tail, []))
    sealable = _sealable(groups, _rows_kept(connection, tail, sizes), sizes) if seals else []
    if sealable:
        gone = sum(len(batch) for batch in sealable)
        return Done(gone, sum(_seal(connection, tail, batch, sizes) for batch in sealable))
    return Done(_join(connection, [(tail, batch) for batch in _joinable(groups, sizes)]))


def join(connection: Connection, tails: Sequence[Tail], *, sizes: Sizes = SIZES) -> Done:
    """Join the small chunks of tails, with as few statements for many as for one.

    Raises:
        ConflictError: somebody else does the same.
    """
    held = _held(connection, tails)
    return Done(
        _join(
            connection,
            [
                (tail, batch)
                for tail, found in held.items()
                for batch in _joinable(_groups(found), sizes)
            ],
        )
    )


def _held(connection: Connection, tails: Sequence[Tail]) -> dict[Tail, list[_Chunk]]:
    """Return the chunks of tails by ascending step, held until the transaction ends, so that what
    is decided on them holds for what is read of them later.
    """
    c = sample_chunks.c
    key = (c.run, c.generation, c.rank)
    query = (
        select(*key, c.id, c.first_step, c.last_step, c.num_rows)
        .where(among(connection, key, [(tail.run, tail.generation, tail.rank) for tail in tails]))
        .order_by(*key, c.first_step, c.id)
        .with_for_update()
    )
    found: dict[Tail, list[_Chunk]] = {}
    for run, generation, rank, *chunk in connection.execute(query):
        found.setdefault(Tail(run, generation, rank), []).append(_Chunk(*chunk))
    return found


def _rows_kept(connection: Connection, tail: Tail, sizes: Sizes) -> int | None:
    """Return how many newest rows stay in chunks; None when all do."""
    a, g = attempts.c, sample_ageing.c
    ended_at = connection.scalar(
        select(a.ended_at).where(a.run == tail.run, a.generation == tail.generation)
    )
    if ended_at is None:
        return sizes.tail_rows
    stage = connection.scalar(
        select(g.stage).where(g.run == tail.run, g.generation == tail.generation)
    )
    # What comes after a roll-up stays as it came: there is nothing left that it could join.
    return 0 if (stage or 0) <= Stage.SHORT else None


def _groups(found: Sequence[_Chunk]) -> list[list[_Chunk]]:
    """Return chunks by ascending step, those together that reach into each other: within a group
    the age of a chunk decides which row of a step counts, between groups nothing does.
    """
    groups: list[list[_Chunk]] = []
    reached = 0
    for chunk in found:
        if groups and chunk.first_step <= reached:
            groups[-1].append(chunk)
        else:
            groups.append([chunk])
        reached = max(reached, chunk.last_step)
    return groups


def _rows(group: Iterable[_Chunk]) -> int:
    return sum(chunk.num_rows for chunk in group)


def _sealable(groups: Sequence[list[_Chunk]], keep: int | None, sizes: Sizes) -> list[list[_Chunk]]:
    """Return what is to be sealed, each item as blocks of its own."""
    if keep is None:
        return []
    left = sum(map(_rows, groups))
    sealable: list[list[_Chunk]] = []
    batch: list[_Chunk] = []
    for group in groups:
        if left - _rows(group) < keep:
            break
        left -= _rows(group)
        batch = [*batch, *group]
        if _rows(batch) >= sizes.block_rows:
            sealable.append(batch)
            batch = []
    if keep == 0 and batch:
        if _rows(batch) >= sizes.least_rows:
            sealable.append(batch)
        elif sealable:
            sealable[-1] = [*sealable[-1], *batch]
    return sealable


def _joinable(groups: Sequence[list[_Chunk]], sizes: Sizes) -> list[list[_Chunk]]:
    """Return what is to become one chunk each."""
    joinable: list[list[_Chunk]] = []
    batch: list[_Chunk] = []
    for group in groups:
        if len(group) == 1 and group[0].num_rows >= sizes.chunk_rows:
            joinable.append(batch)
            batch = []
            continue
        batch = [*batch, *group]
        if _rows(batch) >= sizes.chunk_rows:
            joinable.append(batch)
            batch = []
    return [batch for batch in (*joinable, batch) if len(batch) > 1]


def _join(connection: Connection, batches: Sequence[tuple[Tail, Sequence[_Chunk]]]) -> int:
    """Make one chunk of each batch; return how many chunks are gone."""
    found = _taken(connection, [chunk.id for _, batch in batches for chunk in batch])
    insert_many(
        connection,
        sample_chunks,
        ("id", *samples.CHUNK_COLUMNS),
        [
            (
                # It keeps its place: what came meanwhile is younger than all that is in it.
                max(chunk.id for chunk in batch),
                tail.run,
                tail.generation,
                tail.rank,
                *samples.chunk_row(_rows_of(found, batch)),
            )
            for tail, batch in batches
        ],
    )
    return len(found) - len(batches)


def _seal(connection: Connection, tail: Tail, batch: Sequence[_Chunk], sizes: Sizes) -> int:
    rows = _rows_of(_taken(connection, [chunk.id for chunk in batch]), batch)
    sealed = len(rows.steps)
    before = _taken_blocks(connection, tail, int(rows.steps[0]), int(rows.steps[-1]))
    if before:
        rows = chunks.joined([*before, rows])
    stored = []
    for block in blocks.split(rows, sizes.block_rows):
        key = (tail.run, tail.generation, tail.rank)
        span = (int(block.steps[0]), int(block.steps[-1]), len(block.steps))
        num_skipped = samples.count_skipped(block)
        for name, data in blocks.columns_of(block):
            skipped = num_skipped if name == "applied" else 0
            stored.append((*key, name, *span, skipped, False, data))
    insert_many(connection, sample_blocks, BLOCK_COLUMNS, stored)
    return sealed


def _taken(connection: Connection, ids: Sequence[int]) -> dict[int, bytes]:
    """Remove chunks, and return what was in them."""
    if not ids:
        return {}
    c = sample_chunks.c
    those = one_of(connection, c.id, ids)
    rows = connection.execute(select(c.id, c.columns).where(those))
    found: dict[int, bytes] = {row.id: row.columns for row in rows}
    removed = connection.execute(delete(sample_chunks).where(those)).rowcount
    if len(found) != len(ids) or removed != len(ids):
        raise ConflictError("samples were rewritten by another control plane meanwhile")
    return found


def _rows_of(found: Mapping[int, bytes], batch: Sequence[_Chunk]) -> Rows:
    """Return the rows of chunks; of a step that is there twice the older one."""
    data = [found[chunk] for chunk in sorted(chunk.id for chunk in batch)]
    return chunks.decode_all(data)


def _taken_blocks(
    connection: Connection, tail: Tail, first_step: int, last_step: int
) -> list[Rows]:
    """Remove the blocks that reach into these steps, and return their rows."""
    c = sample_blocks.c
    reached = and_(
        c.run == tail.run,
        c.generation == tail.generation,
        c.rank == tail.rank,
        c.rolled_up.is_(False),
        c.last_step >= first_step,
        c.first_step <= last_step,
    )
    # Mostly there are none, which the column of steps, the head of an index, tells by itself.
    if connection.scalar(select(c.rank).where(reached, c.metric == blocks.STEP).limit(1)) is None:
        return []
    columns: dict[int, dict[str, bytes]] = {}
    found = connection.execute(
        select(c.first_step, c.metric, c.data).where(reached).order_by(c.first_step)
    ).all()
    for block, metric, data in found:
        columns.setdefault(block, {})[metric] = data
    removed = connection.execute(delete(sample_blocks).where(reached)).rowcount
    if removed != len(found):
        raise ConflictError("samples were rewritten by another control plane meanwhile")
    return [blocks.rows_of(each) for each in columns.values()]
