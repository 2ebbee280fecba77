"""The facts from which the wall time of a run is accounted for; the accounting itself is
`control.goodput`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

import numpy as np
from sqlalchemy import Connection, select

from control.db import chunks, queries, samples, tables
from control.db.segments import whole
from control.goodput import StepTime, goodput, phases_of
from control.lineage import lineage_of
from control.snapshot import Attempt

MAX_KEPT = 200
_METRICS = ("step_time_s", "applied", "data_s", "checkpoint_stall_s")


class Accounts:
    """Remembers accounts for a while: a long run's take a while, and pages ask every second."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._kept: dict[str, tuple[float, dict[str, float]]] = {}

    def of(self, connection: Connection, run: str, *, now: datetime) -> dict[str, float]:
        """Return the accounts of a run, at most so old that a twentieth of the time goes into them.

        Raises:
            NotFoundError: there is no such run.
        """
        began = self._monotonic()
        good_until, kept = self._kept.get(run, (0.0, {}))
        if began < good_until:
            return kept
        made = goodput_of(connection, run, now=now)
        ended = self._monotonic()
        self._kept[run] = (ended + 20 * (ended - began), made)
        while len(self._kept) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        return made


def goodput_of(connection: Connection, run: str, *, now: datetime) -> dict[str, float]:
    """Return bucket -> seconds, with `wall_s` and `productive_ratio`.

    Raises:
        NotFoundError: there is no such run.
    """
    row = queries.run_row(connection, run)
    attempts = queries.attempts_of(connection, run)
    e = tables.events.c
    history = connection.execute(
        select(e.at, e.kind)
        .where(e.run == run, e.actor == "control", e.kind.startswith("run_"))
        .order_by(e.id)
    )
    phases = phases_of(row["created_at"], ((at, kind) for at, kind in history))
    newest = attempts[-1].generation if attempts else None
    return goodput(
        phases,
        _steps(connection, run, attempts),
        lineage_of(attempts, newest),
        until=row["ended_at"] or now,
    )


def _steps(connection: Connection, run: str, attempts: Sequence[Attempt]) -> Iterator[StepTime]:
    segments = whole(attempt.generation for attempt in attempts)
    found = samples.read_many(connection, run, _METRICS, segments, rank=0)
    times = found["step_time_s"]
    if len(times) == 0:
        return
    applied, data, stall = (
        np.where(np.isfinite(found[name].values), found[name].values, default)
        for name, default in (("applied", 1.0), ("data_s", 0.0), ("checkpoint_stall_s", 0.0))
    )
    known = np.isfinite(times.values) & ~chunks.missing(times.values)
    for each in np.flatnonzero(known).tolist():
        yield StepTime(
            generation=int(times.generations[each]),
            step=int(times.steps[each]),
            ended_at=datetime.fromtimestamp(float(times.at[each]), UTC),
            step_time_s=float(times.values[each]),
            applied=bool(applied[each]),
            data_s=float(data[each]),
            stall_s=float(stall[each]),
        )
