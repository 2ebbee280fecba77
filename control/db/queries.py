"""Runs as the API shows them, and their series."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np
from sqlalchemy import Connection, select

from control.db import chunks, rows, samples, tables, unreadable
from control.db import points as shown
from control.db.downsample import thinned
from control.db.faults import UnreadableError
from control.db.listings import Json, at
from control.db.rows import Row
from control.db.segments import Segment, newest_step, surviving, whole
from control.db.values import number_word
from control.lifecycle import ENDED
from control.snapshot import Attempt
from trainmaster.errors import NotFoundError, UserError
from trainmaster.metrics import BY_NAME, DERIVED, Metric, Reduce
from trainmaster.plan import Plan

UNREADABLE = (UnreadableError, ValueError, TypeError, KeyError)

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


def list_runs(
    connection: Connection, *, state: str | None = None, limit: int | None = None
) -> list[Json]:
    """Return the newest runs, oldest first, without what only their own page shows."""
    c = tables.runs.c
    query = select(tables.runs).order_by(c.created_at.desc(), c.id.desc())
    if state is not None:
        query = query.where(c.state == state)
    if limit is not None:
        query = query.limit(limit)
    try:
        found = connection.execute(query).mappings().all()
        return [
            _summary(connection, row, attempts_of(connection, row["id"])) for row in reversed(found)
        ]
    except UNREADABLE:
        ids = connection.scalars(query.with_only_columns(c.id)).all()
        return [_listed(connection, run) for run in reversed(ids)]


def _listed(connection: Connection, run: str) -> Json:
    """Return a run for a list in which not all can be read."""
    try:
        return _summary(connection, run_row(connection, run), attempts_of(connection, run))
    except UNREADABLE as error:
        return _unreadable(connection, run, error)


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
        "workload": _workload(connection, row["workload_key"]),
        "plan": newest and _plan(newest.plan),
        "attempts": [_attempt(attempt, row) for attempt in attempts],
        "checkpoint_interval": _interval(connection, run, newest),
        "ranks": ranks_of(connection, run, row["generation"]),
    }


def _workload(connection: Connection, key: str) -> Json | None:
    """Return what a node found the workload and its data to be, None before one has looked."""
    info = connection.scalar(select(tables.workloads.c.info).where(tables.workloads.c.key == key))
    return info and {name: value for name, value in info.items() if name != "layers"}


def _interval(connection: Connection, run: str, newest: Attempt | None) -> Json | None:
    """Return how many steps lie between checkpoints, and why; None before the first attempt."""
    if newest is None:
        return None
    e = tables.events.c
    because = connection.scalar(
        select(e.because)
        .where(e.run == run, e.generation == newest.generation, e.kind == "interval_chosen")
        .order_by(e.id.desc())
        .limit(1)
    )
    return {"every_steps": newest.checkpoint_every, "because": because or ""}


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
    return {"loss": None, "grad_norm": None, "tokens_per_s": None, "last_point_at": None}


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
    return latest


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


def series(
    connection: Connection,
    run: str,
    metric: str,
    *,
    rank: int | None = None,
    generation: int | None = None,
    all_generations: bool = False,
    after_step: int = 0,
    until_step: int | None = None,
    after: str | None = None,
    reduce: Reduce | None = None,
    points: int = 1000,
    as_columns: bool = False,
) -> Json:
    """Return one series as the contract has it, at most `points` points of it.

    Args:
        after_step: only points beyond it; for charts that have the others.
        after: the cursor of an answer before: only what has come since; "" to begin.
        reduce: how ranks become one value where they differ; None for the mean.
        as_columns: rather than points.

    Raises:
        NotFoundError: there is no such run or generation.
        UserError: there is no such metric, or `after` is no cursor.
    """
    known = known_metric(metric)
    row = run_row(connection, run)
    attempts = attempts_of(connection, run)
    segments = segments_of(
        run,
        attempts,
        generation=generation,
        all_generations=all_generations,
        after_step=after_step,
        until_step=until_step,
    )
    key = shown.key_of((run, metric, rank, reduce), segments)
    cursor = shown.Cursor.read(after) if after else None
    goes_on = (
        cursor is not None
        and cursor.key == key
        and cursor.num_rows == _num_seen(connection, run, metric, segments, cursor.step, rank)
    )
    found = samples.read(
        connection,
        run,
        metric,
        shown.unseen(segments, cursor.step) if cursor and goes_on and segments else segments,
        rank=rank,
        reduce=reduce or "mean",
        live=live_generation(row, attempts),
    )
    chosen = thinned(found, points)
    answer = {
        "metric": metric,
        "unit": known.unit,
        **({"columns": shown.columns(chosen)} if as_columns else {"points": shown.points(chosen)}),
        "total_points": len(found),
        "downsampled": len(chosen) < len(found),
        "rolled_up": found.rolled_up,
        "generation": row["generation"],
        "lineage": [[each.generation, each.after_step] for each in surviving(attempts)],
    }
    if after is None:
        return answer
    step = cursor.step if cursor and goes_on else 0
    if len(found) and found.generations[-1] == segments[-1].generation:
        step = int(found.steps[-1])
    count = _num_seen(connection, run, metric, segments, step, rank)
    return {
        **answer,
        "cursor": str(shown.Cursor(key, step, count)),
        "reset": cursor is not None and not goes_on,
    }


def _num_seen(
    connection: Connection,
    run: str,
    metric: str,
    segments: Sequence[Segment],
    step: int,
    rank: int | None,
) -> int:
    past = shown.seen(segments, step) if segments else []
    return samples.num_rows(connection, run, metric, past, rank=rank)


def known_metric(metric: str) -> Metric:
    """Return a metric that is measured or computed from what is.

    Raises:
        UserError: there is none of that name.
    """
    known = BY_NAME.get(metric) or DERIVED.get(metric)
    if known is None:
        names = ", ".join([*BY_NAME, *DERIVED])
        raise UserError(f"{metric!r} is not a metric; there are {names}", code="unknown_metric")
    return known


def live_generation(row: Row, attempts: Sequence[Attempt]) -> int | None:
    """Return the generation that is still written to; None where there is none."""
    newest = attempts[-1] if attempts else None
    lives = newest is not None and newest.ended_at is None and row["state"] not in ENDED
    return newest.generation if newest is not None and lives else None


def segments_of(
    run: str,
    attempts: Sequence[Attempt],
    *,
    generation: int | None = None,
    all_generations: bool = False,
    after_step: int = 0,
    until_step: int | None = None,
) -> list[Segment]:
    """Return the stretches that are asked for: by default the surviving lineage.

    Raises:
        NotFoundError: there is no such generation.
    """
    return [
        Segment(each.generation, first, last)
        for each in _segments(run, attempts, generation, all_generations=all_generations)
        if (first := max(each.after_step, after_step))
        < (last := min(each.last_step, until_step or each.last_step))
    ]


def _segments(
    run: str, attempts: Sequence[Attempt], generation: int | None, *, all_generations: bool
) -> Sequence[Segment]:
    generations = [attempt.generation for attempt in attempts]
    if generation is not None:
        if generation not in generations:
            raise NotFoundError(f"run {run!r} has no generation {generation}")
        return whole([generation])
    return whole(generations) if all_generations else surviving(attempts)
