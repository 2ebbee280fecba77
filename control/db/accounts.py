"""The facts from which the wall time of a run is accounted for; the accounting itself is
`control.goodput`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from sqlalchemy import Connection, select

from control.db import queries, tables
from control.db.samples import chunks, samples
from control.db.samples.segments import whole
from control.db.sql import values
from control.db.sql.faults import UnreadableError
from control.db.unreadable import readable
from control.goodput import BUCKETS, Restoring, StepTimes, goodput, phases_of
from control.lineage import lineage_of
from control.recovery.recoveries import Recoveries, Trained, of_run, together
from control.recovery.replanning import REDUCED, governing
from control.snapshot import Attempt

FLEET_RUNS = 200
"""How many runs, the newest first, make up the accounts of the fleet."""

MAX_KEPT = FLEET_RUNS
_TURNS = 64
_METRICS = ("step_time_s", "applied", "data_s", "checkpoint_stall_s")


@dataclass(frozen=True, slots=True)
class Account:
    """Where the wall time of a run went (bucket -> seconds), and what failures cost it."""

    goodput: dict[str, float]
    recoveries: Recoveries


@dataclass(frozen=True, slots=True)
class _Kept:
    """An account, of which generation in which state, and for how long it is good enough."""

    mark: tuple[Any, ...] | None
    good_until: float
    account: Account


class Accounts:
    """Remembers accounts for a while: a long run's take a while, and pages ask every second."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._kept: dict[str, _Kept] = {}
        self._turns = tuple(threading.Lock() for _ in range(_TURNS))

    def of(self, connection: Connection, run: str, *, now: datetime) -> Account:
        """Return the account of a run, at most so old that a twentieth of the time goes into it,
        and of no other state than the run is in: that of one that has ended is whole at once.
        Who asks while it is being made waits for that one, instead of making it again.

        Raises:
            NotFoundError: there is no such run.
            UnreadableError: what is stored of it is damaged.
        """
        with self._turns[hash(run) % _TURNS]:
            return self._of(connection, run, now)

    def _of(self, connection: Connection, run: str, now: datetime) -> Account:
        began = self._monotonic()
        r = tables.runs.c
        row = connection.execute(select(r.generation, r.state_since).where(r.id == run)).first()
        mark = None if row is None else tuple(row)
        kept = self._kept.get(run)
        if kept is not None and kept.mark == mark and began < kept.good_until:
            return kept.account
        with readable(f"run {run}"):
            made = account_of(connection, run, now=now)
        ended = self._monotonic()
        self._kept[run] = _Kept(mark, ended + 20 * (ended - began), made)
        while len(self._kept) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        return made

    def of_fleet(self, connection: Connection, *, now: datetime) -> dict[str, Any]:
        """Return the accounts of the newest `FLEET_RUNS` runs as one."""
        r = tables.runs.c
        query = select(r.id).order_by(r.created_at.desc(), r.id).limit(FLEET_RUNS)
        found = []
        for run in connection.scalars(query).all():
            try:
                found.append(self.of(connection, run, now=now))
            except UnreadableError:
                continue  # it is named elsewhere, and must not hide the others
        buckets = {name: sum(each.goodput[name] for each in found) for name in (*BUCKETS, "wall_s")}
        wall_s = buckets["wall_s"]
        productive = buckets["productive_step_s"] / wall_s if wall_s > 0 else 0.0
        recoveries = together(each.recoveries for each in found)
        return {
            "runs": len(found),
            "goodput": {**buckets, "productive_ratio": productive},
            "recoveries": recoveries.to_json(),
        }


def account_of(connection: Connection, run: str, *, now: datetime) -> Account:
    """Return the account of a run as it is now.

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
    steps = _steps(connection, run, attempts)
    reduced = [
        attempt.generation
        for position, attempt in enumerate(attempts)
        if (found := governing(attempts[: position + 1])) is not None
        and found.cause_kind in REDUCED
    ]
    account = goodput(
        phases,
        steps,
        lineage_of(attempts, newest),
        until=row["ended_at"] or now,
        degraded=frozenset(reduced),
        restored=_restored(connection, run),
    )
    return Account(account, of_run(attempts, _trained(steps)))


def _restored(connection: Connection, run: str) -> list[Restoring]:
    e = tables.events.c
    told = connection.execute(
        select(e.at, e.data).where(e.run == run, e.kind == "checkpoint_restored")
    )
    return [Restoring(at, values.seconds(data.get("seconds"))) for at, data in told]


def _trained(steps: StepTimes) -> dict[int, Trained]:
    found: dict[int, Trained] = {}
    for generation in np.unique(steps.generations).tolist():
        ended_at = steps.ended_at[steps.generations == generation]
        found[generation] = Trained(_instant(ended_at.min()), _instant(ended_at.max()))
    return found


def _instant(timestamp: float) -> datetime:
    return datetime.fromtimestamp(float(timestamp), UTC)


def _steps(connection: Connection, run: str, attempts: Sequence[Attempt]) -> StepTimes:
    segments = whole(attempt.generation for attempt in attempts)
    found = samples.read_many(connection, run, _METRICS, segments, rank=0)
    times = found["step_time_s"]
    if len(times) == 0:
        found = dict.fromkeys(_METRICS, times)
    known = np.isfinite(times.values) & ~chunks.missing(times.values)
    applied, data, stall = (
        np.where(np.isfinite(found[name].values), found[name].values, default)[known]
        for name, default in (("applied", 1.0), ("data_s", 0.0), ("checkpoint_stall_s", 0.0))
    )
    return StepTimes(
        generations=times.generations[known],
        steps=times.steps[known],
        ended_at=times.at[known],
        step_times_s=times.values[known],
        applied=applied != 0.0,
        data_s=data,
        stall_s=stall,
    )
