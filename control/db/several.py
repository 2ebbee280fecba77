"""Several series of a run in one reading, for a page that shows them together."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from control.db import points, queries, samples
from control.db.downsample import thinned
from control.db.listings import Json
from control.db.segments import surviving


def several(
    connection: Connection,
    run: str,
    wanted: Sequence[tuple[str, int | None]],
    *,
    generation: int | None = None,
    all_generations: bool = False,
    after_step: int = 0,
    until_step: int | None = None,
    num_points: int = 1000,
) -> Json:
    """Return a series for each (metric, rank) that is wanted, in that order and as columns; rank
    None is the value of the run. See `control.db.queries.series` for the rest.

    Raises:
        NotFoundError: there is no such run or generation.
        UserError: there is no such metric.
    """
    known = [queries.known_metric(metric) for metric, _ in wanted]
    row = queries.run_row(connection, run)
    attempts = queries.attempts_of(connection, run)
    segments = queries.segments_of(
        run,
        attempts,
        generation=generation,
        all_generations=all_generations,
        after_step=after_step,
        until_step=until_step,
    )
    live = queries.live_generation(row, attempts)
    found = samples.read_each(connection, run, wanted, segments, live=live)
    told = []
    for metric, (_, rank), series in zip(known, wanted, found, strict=True):
        chosen = thinned(series, num_points)
        told.append(
            {
                "metric": metric.name,
                "rank": rank,
                "unit": metric.unit,
                "columns": points.columns(chosen),
                "total_points": len(series),
                "downsampled": len(chosen) < len(series),
                "rolled_up": series.rolled_up,
            }
        )
    return {
        "series": told,
        "generation": row["generation"],
        "lineage": [[each.generation, each.after_step] for each in surviving(attempts)],
    }
