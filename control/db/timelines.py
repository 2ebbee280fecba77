"""The timelines of recorded steps: stored as ranks told them, and the newest steps of each run
kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, func, select, tuple_

from control.db import tables
from control.db.fleet.levels import Key
from control.db.sql.upsert import upsert
from control.db.sql.values import instant_text
from trainmaster import timeline
from trainmaster.errors import IntegrityError, NotFoundError, Problem, SpecError
from trainmaster.facts import PackedTimeline
from trainmaster.timeline import Timeline

MOST_STEPS = 200
"""Recorded steps that are kept of a run; beyond them the oldest go."""


class Packed(NamedTuple):
    """A timeline, and its bytes as they came."""

    timeline: Timeline
    data: bytes


def read_packed(told: Sequence[PackedTimeline]) -> list[Packed]:
    """Read what a sync carries.

    Raises:
        SpecError: one of them is no timeline.
    """
    found = []
    for position, each in enumerate(told):
        try:
            found.append(Packed(timeline.decode(each.data), each.data))
        except IntegrityError as error:
            raise SpecError([Problem(f"timelines[{position}].data", error.message)]) from error
    return found


def store(connection: Connection, told: Sequence[tuple[Key, Sequence[Packed]]]) -> None:
    """Store what ranks recorded, and remove of their runs what is one step too many."""
    rows = [
        {
            "run": run,
            "generation": generation,
            "step": each.timeline.step,
            "rank": rank,
            "at": each.timeline.at,
            "length_s": each.timeline.length_ns / 1e9,
            "num_actions": len(each.timeline.actions),
            "data": each.data,
        }
        for (run, generation, rank), several in told
        for each in several
    ]
    upsert(connection, tables.timelines, rows)
    for run in sorted({run for (run, _, _), several in told if several}):
        _prune(connection, run)


def _prune(connection: Connection, run: str) -> None:
    c = tables.timelines.c
    last_kept = connection.execute(
        select(c.generation, c.step)
        .where(c.run == run)
        .distinct()
        .order_by(c.generation.desc(), c.step.desc())
        .offset(MOST_STEPS - 1)
        .limit(1)
    ).one_or_none()
    if last_kept is not None:
        older = tuple_(c.generation, c.step) < tuple_(*last_kept)
        connection.execute(delete(tables.timelines).where(c.run == run, older))


def remove_old(connection: Connection, *, before: datetime) -> None:
    """Remove the timelines of runs that ended before an instant."""
    r = tables.runs.c
    ended = select(r.id).where(r.ended_at < before)
    connection.execute(delete(tables.timelines).where(tables.timelines.c.run.in_(ended)))


def listed(connection: Connection, run: str) -> list[dict[str, Any]]:
    """Return which steps of a run were recorded, oldest first."""
    c = tables.timelines.c
    query = (
        select(
            c.generation,
            c.step,
            func.min(c.at).label("at"),
            func.max(c.length_s).label("length_s"),
            func.count().label("ranks"),
            func.sum(c.num_actions).label("actions"),
        )
        .where(c.run == run)
        .group_by(c.generation, c.step)
        .order_by(c.generation, c.step)
    )
    return [
        {**row, "actions": int(row["actions"]), "at": _instant(row["at"])}
        for row in connection.execute(query).mappings()
    ]


def _instant(seconds: float) -> str:
    return instant_text(datetime.fromtimestamp(seconds, UTC))


def of_step(
    connection: Connection, run: str, step: int, *, generation: int | None
) -> tuple[int, dict[int, Timeline]]:
    """Return the generation, and by rank what was recorded of a step.

    Args:
        generation: None for the newest that recorded it.

    Raises:
        NotFoundError: it was not recorded.
    """
    c = tables.timelines.c
    query = select(c.generation, c.rank, c.data).where(c.run == run, c.step == step)
    if generation is not None:
        query = query.where(c.generation == generation)
    rows = connection.execute(query.order_by(c.generation.desc(), c.rank)).all()
    if not rows:
        which = "" if generation is None else f" of generation {generation}"
        recorded = [f"{row['step']}" for row in listed(connection, run)[-10:]]
        newest = f"the newest recorded are {', '.join(recorded)}" if recorded else "none was so far"
        raise NotFoundError(
            f"step {step}{which} of run {run!r} was not recorded: {newest}; record one with the "
            "request `timeline`, or set telemetry.timeline_every"
        )
    newest_generation = rows[0].generation
    return newest_generation, {
        row.rank: timeline.decode(row.data) for row in rows if row.generation == newest_generation
    }
