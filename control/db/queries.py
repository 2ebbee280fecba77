"""Runs as the API shows them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np
from sqlalchemy import Connection, select

from control.db import rows, tables, unreadable
from control.db.fleet import described
from control.db.listings import Json, at
from control.db.rows import Row
from control.db.samples import chunks, samples
from control.db.samples.segments import Segment, newest_step, surviving
from control.db.sql import values
from control.db.sql.among import one_of
from control.db.sql.faults import UnreadableError
from control.db.sql.values import number_word
from control.lifecycle import ENDED
from control.snapshot import Attempt
from trainmaster.errors import NotFoundError
from trainmaster.plan import Plan

UNREADABLE = (UnreadableError, ValueError, TypeError, KeyError)

AT_ONCE = 500
"""Runs that are read together."""

RECENT_STEPS = 16
"""Steps over which `tokens_per_s` of a run is averaged."""


def run_row(connection: Connection, run: str) -> Row:
    """Return a run's row.

    Raises:
        NotFoundError: there is no such run.
    """
    row = (
        connection.execute(select(tables.runs).where(tables.runs.c.id == run))
        .mappings()
        .one_or_none()
    )
    if row is None:
        raise NotFoundError(f"there is no run {run!r}")
    return dict(row)


def attempts_of(connection: Connection, run: str) -> list[Attempt]:
    """Return all attempts of a run, ascending."""
    c = tables.attempts.c
    query = select(tables.attempts).where(c.run == run).order_by(c.generation)
    with unreadable.readable(f"an attempt of run {run}"):
        return [rows.attempt(row) for row in connection.execute(query).mappings()]


def listed(connection: Connection, runs: Sequence[str]) -> dict[str, Json]:
    """Return runs as lists show them, without what only their own pages show; one that cannot be
    read says so. What has not begun to train takes no query of its own.
    """
    told: dict[str, Json] = {}
    for first in range(0, len(runs), AT_ONCE):
        some = runs[first : first + AT_ONCE]
        try:
            told |= _listed(connection, some)
        except UNREADABLE:
            told |= {run: _alone(connection, run) for run in some}
    return told


def _alone(connection: Connection, run: str) -> Json:
    try:
        return _summary(connection, run_row(connection, run), attempts_of(connection, run))
    except UNREADABLE as error:
        return _unreadable(connection, run, error)


def _listed(connection: Connection, runs: Sequence[str]) -> dict[str, Json]:
    r, a = tables.runs.c, tables.attempts.c
    attempts: dict[str, list[Attempt]] = {}
    query = select(tables.attempts).where(one_of(connection, a.run, runs))
    for row in connection.execute(query.order_by(a.run, a.generation)).mappings():
        attempts.setdefault(row["run"], []).append(rows.attempt(row))
    found = connection.execute(select(tables.runs).where(one_of(connection, r.id, runs)))
    return {
        row["id"]: _summary(connection, row, attempts.get(row["id"], ()))
        for row in found.mappings().all()
    }


def _unreadable(connection: Connection, run: str, error: Exception) -> Json:
    """Return what can be told of a run whose spec or attempts cannot be read."""
    query = select(*unreadable.plain_columns(tables.runs)).where(tables.runs.c.id == run)
    row = connection.execute(query).mappings().one()
    return {
        **_told(row),
        "step": 0,
        "target_steps": 0,
        **_nothing_latest(),
        "skipped_steps": 0,
        "unreadable": f"{unreadable.said(error)}; `trainmaster doctor` says how to mend it",
    }


def show(connection: Connection, run: str) -> Json:
    """Return a run with its attempts, ranks and plan.

    Raises:
        NotFoundError: there is no such run.
    """
    try:
        return _show(connection, run)
    except UNREADABLE as error:
        told = _unreadable(connection, run, error)
    nothing: Json = {
        "spec": None,
        "workload": None,
        "plan": None,
        "attempts": [],
        "checkpoint_interval": None,
    }
    return {**told, **nothing, "ranks": ranks_of(connection, run, told["generation"])}


def _show(connection: Connection, run: str) -> Json:
    row = run_row(connection, run)
    attempts = attempts_of(connection, run)
    newest = attempts[-1] if attempts else None
    return {
        **_summary(connection, row, attempts),
        "spec": row["spec"],
        "workload": described.workload(connection, run, row["workload_key"]),
        "plan": newest and _plan(newest.plan),
        "attempts": [_attempt(attempt, row) for attempt in attempts],
        "checkpoint_interval": _interval(connection, run, newest),
        "ranks": ranks_of(connection, run, row["generation"]),
    }


def _interval(connection: Connection, run: str, newest: Attempt | None) -> Json | None:
    """Return how many steps lie between checkpoints, from which step on they are counted, and why;
    None before the first attempt.
    """
    if newest is None:
        return None
    e = tables.events.c
    chosen = connection.execute(
        select(e.because, e.data)
        .where(e.run == run, e.generation == newest.generation, e.kind == "interval_chosen")
        .order_by(e.id.desc())
        .limit(1)
    ).one_or_none()
    # Ranks count from step 0 until they change the interval themselves; they then tell what it was.
    changed = chosen is not None and "before" in chosen.data
    return {
        "every_steps": newest.checkpoint_every,
        "from_step": (values.whole(chosen.data.get("step")) or 0)
        if chosen is not None and changed
        else 0,
        "because": "" if chosen is None else chosen.because or "",
    }


def _summary(connection: Connection, row: Row, attempts: Sequence[Attempt]) -> Json:
    segments = surviving(attempts)
    step = newest_step(attempts, segments)
    latest = _latest(connection, row["id"], segments, step)
    # Before the first new step of a generation, the run stands where that generation began.
    began = attempts[-1].resumed_from_step if attempts else 0
    return {
        **_told(row),
        "step": max(step or 0, began),
        "target_steps": row["spec"]["train"]["steps"],
        **latest,
        "skipped_steps": samples.num_skipped(connection, row["id"], segments),
        "unreadable": None,
    }


def _told(row: Row) -> Json:
    """Return what a run's own row says without its spec."""
    return {
        "id": row["id"],
        "name": row["name"],
        "state": row["state"],
        "state_since": at(row["state_since"]),
        "desired": row["desired"],
        "version": row["version"],
        "generation": row["generation"],
        "priority": row["priority"],
        "created_at": at(row["created_at"]),
        "created_by": row["created_by"],
        "started_at": at(row["started_at"]),
        "ended_at": at(row["ended_at"]),
        "because": row["because"],
        "code": row["code"],
        "weights_sha256": row["weights_sha256"],
        "checkpoint_root": row["checkpoint_root"],
    }


def _nothing_latest() -> Json:
    return {
        "loss": None,
        "grad_norm": None,
        "tokens_per_s": None,
        "last_point_at": None,
        "pace_s": None,
    }


def _latest(
    connection: Connection, run: str, segments: Sequence[Segment], step: int | None
) -> Json:
    latest = _nothing_latest()
    if step is None:
        return latest
    names = ("loss", "grad_norm", samples.TOKENS_PER_S)
    found = samples.windows(
        connection, run, names, segments, newest=RECENT_STEPS, last_step=step, live=None
    )
    for name in ("loss", "grad_norm"):
        latest[name] = _value(found[name].values[-1:])
    # Only what is going on has a speed; the mean of rates over equal steps would flatter, so it is
    # the harmonic one.
    speeds = found[samples.TOKENS_PER_S].values
    speeds = speeds[np.isfinite(speeds) & (speeds > 0)]
    latest[samples.TOKENS_PER_S] = (
        float(len(speeds) / np.sum(1.0 / speeds)) if len(speeds) else None
    )
    if len(found["loss"]):
        latest["last_point_at"] = at(datetime.fromtimestamp(float(found["loss"].at[-1]), UTC))
    latest["pace_s"] = _pace(found["loss"].at[found["loss"].generations == segments[-1].generation])
    return latest


def _pace(ended_at: chunks.Floats) -> float | None:
    """Return the seconds from step to step, by the middle of the newest: one that waited for a
    checkpoint tells nothing of the rest.
    """
    return float(np.median(np.diff(ended_at))) if len(ended_at) > 1 else None


def _value(values: chunks.Floats) -> float | str | None:
    if len(values) == 0 or bool(chunks.missing(values)[-1]):
        return None
    return number_word(float(values[-1]))


def _plan(plan: Plan) -> Json:
    return plan.model_dump(mode="json")


def _attempt(attempt: Attempt, run: Row) -> Json:
    is_live = attempt.ended_at is None and run["state"] not in ENDED
    return {
        "generation": attempt.generation,
        "parent_generation": attempt.parent_generation,
        "state": run["state"] if is_live else attempt.state,
        "cause": attempt.cause,
        "cause_kind": attempt.cause_kind,
        "because": attempt.because,
        "first_step": attempt.first_step,
        "last_step": attempt.last_step,
        "started_at": at(attempt.started_at),
        "ready_at": at(attempt.ready_at),
        "ended_at": at(attempt.ended_at),
        "resumed_from_step": attempt.resumed_from_step,
        "resumed_from_checkpoint": attempt.resumed_from_checkpoint,
        "skip": [list(each) for each in attempt.skip],
        "lr_factor": attempt.lr_factor,
        "lr_windows": [list(each) for each in attempt.lr_windows],
        "incident": attempt.incident,
        "plan": _plan(attempt.plan),
    }


def ranks_of(connection: Connection, run: str, generation: int) -> list[Json]:
    """Return the ranks of one generation."""
    c = tables.ranks.c
    query = select(tables.ranks).where(c.run == run, c.generation == generation).order_by(c.rank)
    rows = connection.execute(query).mappings().all()
    # The ranks that share a place follow each other; each holds the next part of its tensors.
    places = [(row["replica"], row["stage"]) for row in rows]
    return [
        {
            **{
                name: row[name]
                for name in ("rank", "generation", "node", "slot", "pid", "stage", "replica")
            },
            "tensor": places[:index].count(places[index]),
            "state": row["state"],
            "last_step": row["last_step"],
            "last_seen_at": at(row["last_seen_at"]),
            "exit_code": row["exit_code"],
            "signal": row["signal"],
            "exited_at": at(row["exited_at"]),
            "failure": row["failure"],
        }
        for index, row in enumerate(rows)
    ]
