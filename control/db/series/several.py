"""Several series of a run in one reading, for a page that shows them together."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from control.db import queries
from control.db.listings import Json
from control.db.samples.downsample import thinned
from control.db.samples.segments import surviving
from control.db.samples.statistics import together
from control.db.series import points, single
from control.db.series.charts import Charts
from control.db.series.consumed import Consumed


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
    with_statistics: bool = False,
    with_tokens: bool = False,
    charts: Charts | None = None,
) -> Json:
    """Return a series for each (metric, rank) that is wanted, in that order and as columns; rank
    None is the value of the run. See `control.db.series.single.series` for the rest.

    Args:
        with_statistics: figures of all points on the surviving lineage, not of the chosen ones.
        with_tokens: a column more, of what had been taken in up to each point.
        charts: keeps what a later reading of the same run need not read again.

    Raises:
        NotFoundError: there is no such run or generation.
        UserError: there is no such metric.
    """
    known = [single.known_metric(metric) for metric, _ in wanted]
    row = queries.run_row(connection, run)
    attempts = queries.attempts_of(connection, run)
    segments = single.segments_of(
        run,
        attempts,
        generation=generation,
        all_generations=all_generations,
        after_step=after_step,
        until_step=until_step,
    )
    live = single.live_generation(row, attempts)
    lineage = surviving(attempts)
    found = (charts or Charts()).read(
        connection,
        run,
        attempts,
        wanted,
        segments,
        lineage=lineage,
        live=live,
        num_points=num_points,
    )
    consumed = Consumed.read(connection, run, attempts) if with_tokens else None
    told = []
    for metric, (_, rank), shown in zip(known, wanted, found, strict=True):
        chosen = thinned(shown.series, num_points)
        columns = points.columns(chosen)
        if consumed is not None:
            columns["tokens"] = consumed.at(chosen)
        told.append(
            {
                "metric": metric.name,
                "rank": rank,
                "unit": metric.unit,
                "columns": columns,
                "total_points": shown.total,
                "downsampled": len(chosen) < shown.total,
                "rolled_up": shown.series.rolled_up,
                **({"statistics": together(shown.figures)} if with_statistics else {}),
            }
        )
    return {
        "series": told,
        "generation": row["generation"],
        "lineage": [[each.generation, each.after_step] for each in lineage],
    }
