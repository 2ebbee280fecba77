"""One series as it is asked for: which stretches of the run, which points, and what has come since
the last answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from control.db import queries
from control.db.listings import Json
from control.db.rows import Row
from control.db.samples import samples
from control.db.samples.downsample import thinned
from control.db.samples.segments import Segment, require_rank, surviving, whole
from control.db.series import points as shown
from control.lifecycle import ENDED
from control.snapshot import Attempt
from trainmaster.errors import NotFoundError, UserError
from trainmaster.metrics import BY_NAME, DERIVED, Metric, Reduce


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
        NotFoundError: there is no such run, generation or rank.
        UserError: there is no such metric, or `after` is no cursor.
    """
    known = known_metric(metric)
    row = queries.run_row(connection, run)
    attempts = queries.attempts_of(connection, run)
    require_rank(run, attempts, rank)
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
