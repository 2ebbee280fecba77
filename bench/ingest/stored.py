"""What lies in the database: bytes a point, and how long reading a series takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import text

from bench.ingest.site import Site
from bench.measured import NAMES
from control.db import queries, sealing
from control.db.engine import Database

FEW = 2000
READS = 9
SAMPLE_TABLES = ("sample_chunks", "sample_blocks")


@dataclass(frozen=True, slots=True)
class Reads:
    """Milliseconds of each read of one series.

    Attributes:
        exact, few: in this process, through the storage.
        exact_http, few_http: asked of the control plane, until its JSON is parsed.
    """

    exact: list[float]
    few: list[float]
    exact_http: list[float]
    few_http: list[float]


def compact(here: Site) -> None:
    """Have done now what the control plane's clockwork would do in the minutes that follow."""
    database = here.open()
    late = datetime.now(UTC) + timedelta(days=1)
    try:
        while True:
            with database.read() as connection:
                seals = sealing.may_seal(connection, now=late)
                tails = sealing.due(connection, seals=seals)
            gone = 0
            for tail in tails:
                with database.write() as connection:
                    done = sealing.tend(connection, tail, seals=seals)
                gone += done.chunks_gone + done.rows_sealed
            if not gone:
                return
    finally:
        database.close()


def reads(here: Site, run: str, *, points: int) -> Reads:
    """Read metric after metric of `points` points, exact and down-sampled to `FEW`.

    Each read is of another metric, so that none finds what the one before left in memory but the
    database's own pages.
    """
    database = here.open()
    client = here.client
    try:

        def stored(metric: str, limit: int) -> int:
            with database.read() as connection:
                found = queries.series(connection, run, metric, rank=0, points=limit)
            return len(found["points"])

        def asked(metric: str, limit: int) -> int:
            told = client.get(f"/v1/runs/{run}/series", metric=metric, rank=0, points=limit)
            return len(told["points"])

        return Reads(
            _timed(stored, points, points),
            _timed(stored, FEW, points),
            _timed(asked, points, points),
            _timed(asked, FEW, points),
        )
    finally:
        database.close()


def _timed(read: Callable[[str, int], int], limit: int, points: int) -> list[float]:
    taken = []
    for metric in NAMES[:READS]:
        began = time.perf_counter()
        found = read(metric, limit)
        taken.append(1e3 * (time.perf_counter() - began))
        if not (found == points if limit >= points else 0 < found <= limit):
            raise RuntimeError(f"{metric}: {found} points read of {points}, {limit} asked for")
    return taken


def bytes_stored(here: Site) -> int:
    """Return what samples take on the disk once the database has given back what is free."""
    database = here.open()
    try:
        if here.kind == "sqlite":
            return _sqlite_bytes(database)
        with database.engine.connect() as connection:
            connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            total = 0
            for table in SAMPLE_TABLES:
                connection.execute(text(f"VACUUM FULL {table}"))
                size = text(f"SELECT pg_total_relation_size('{table}')")
                total += int(connection.scalar(size) or 0)
            return total
    finally:
        database.close()


def _sqlite_bytes(database: Database) -> int:
    """The file with the samples less the file without them."""
    sizes = []
    for statements in ((), tuple(f"DELETE FROM {table}" for table in SAMPLE_TABLES)):
        with database.engine.connect() as connection:
            raw = connection.connection.driver_connection
            assert raw is not None
            for statement in (*statements, "PRAGMA wal_checkpoint(TRUNCATE)", "VACUUM"):
                raw.execute(statement)
            [(pages,)] = raw.execute("PRAGMA page_count").fetchall()
            [(page_bytes,)] = raw.execute("PRAGMA page_size").fetchall()
            sizes.append(pages * page_bytes)
    return sizes[0] - sizes[1]
