"""What lies in the database: bytes a point, and how long reading a series takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import httpx
from sqlalchemy import text

from bench.ingest.site import Site
from bench.measured import NAMES
from control.db.samples import samples, sealing
from control.db.samples.downsample import thinned
from control.db.samples.segments import whole
from control.db.sql.engine import Database

FEW = 2000
READS = 9
SAMPLE_TABLES = ("sample_chunks", "sample_blocks")


@dataclass(frozen=True, slots=True)
class Reads:
    """Milliseconds of each read of one series, exact and down-sampled to `FEW`.

    Attributes:
        exact, few: in this process, from the database to arrays (`control.db.samples.samples`).
        exact_http, few_http: asked of the control plane, until the body is there.
        exact_parsed, few_parsed: until the client has made Python values of it, too.
    """

    exact: list[float]
    few: list[float]
    exact_http: list[float]
    few_http: list[float]
    exact_parsed: list[float]
    few_parsed: list[float]


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
    """Read metric after metric of `points` points.

    Each read is of another metric, so that none finds what the one before left in memory but the
    database's own pages.
    """
    database = here.open()
    try:

        def stored(metric: str, limit: int) -> int:
            with database.read() as connection:
                found = samples.read(connection, run, metric, whole([1]), rank=0)
            return len(thinned(found, limit))

        with httpx.Client(base_url=here.client.url, headers=here.headers, timeout=120) as http:
            asked = {limit: _asked(http, run, limit, points) for limit in (points, FEW)}
        return Reads(
            _timed(stored, points, points),
            _timed(stored, FEW, points),
            [each[0] for each in asked[points]],
            [each[0] for each in asked[FEW]],
            [each[1] for each in asked[points]],
            [each[1] for each in asked[FEW]],
        )
    finally:
        database.close()


def _asked(http: httpx.Client, run: str, limit: int, points: int) -> list[tuple[float, float]]:
    taken = []
    for metric in NAMES[:READS]:
        began = time.perf_counter()
        answer = http.get(
            f"/v1/runs/{run}/series", params={"metric": metric, "rank": 0, "points": limit}
        )
        there = time.perf_counter()
        found = len(answer.json()["points"])
        taken.append((1e3 * (there - began), 1e3 * (time.perf_counter() - began)))
        _check(metric, found, limit, points)
    return taken


def _timed(read: Callable[[str, int], int], limit: int, points: int) -> list[float]:
    taken = []
    for metric in NAMES[:READS]:
        began = time.perf_counter()
        found = read(metric, limit)
        taken.append(1e3 * (time.perf_counter() - began))
        _check(metric, found, limit, points)
    return taken


def _check(metric: str, found: int, limit: int, points: int) -> None:
    if not (found == points if limit >= points else 0 < found <= limit):
        raise RuntimeError(f"{metric}: {found} points read of {points}, {limit} asked for")


def bytes_stored(here: Site) -> int:
    """Return what samples take on the disk once the database has given back what is free."""
    database = here.open()
    try:
        if here.kind == "sqlite":
            return _sqlite_bytes(database)
        alone = database.engine.execution_options(isolation_level="AUTOCOMMIT")
        with alone.connect() as connection:
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
    sizes = list[int]()
    for statements in ((), tuple(f"DELETE FROM {table}" for table in SAMPLE_TABLES)):
        with database.engine.connect() as connection:
            raw = connection.connection.driver_connection
            assert raw is not None
            for statement in (*statements, "PRAGMA wal_checkpoint(TRUNCATE)", "VACUUM"):
                raw.execute(statement)
            [(pages,)] = raw.execute("PRAGMA page_count").fetchall()
            [(page_bytes,)] = raw.execute("PRAGMA page_size").fetchall()
            sizes.append(int(pages) * int(page_bytes))
    return sizes[0] - sizes[1]
