"""Series as CSV: what a page shows, for other programs. An empty cell was not measured; `nan` and
`inf` were. Pure.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from math import isfinite

from dashboard.charts.series import Series
from dashboard.tails import Wanted


def run_csv(series: Mapping[Wanted, Series]) -> str:
    """Return the series of one run: a row for each point, with what tells it from others. The rank
    is empty where a value is of the run as a whole.
    """
    return _table(
        ["metric", "rank", "generation", "step", "at", "value"],
        (
            [wanted.metric, "" if wanted.rank is None else wanted.rank, generation, step, at, value]
            for wanted, each in series.items()
            for generation, step, at, value in zip(
                each.generations.tolist(),
                each.steps.tolist(),
                map(_instant, each.at.tolist()),
                _cells(each),
                strict=True,
            )
        ),
    )


def runs_csv(names: Sequence[str], series: Sequence[Mapping[str, Series]]) -> str:
    """Return series of several runs: a row for each run and step, a column for each metric."""
    metrics = list(series[0]) if series else []
    rows: list[list[object]] = []
    for name, of_run in zip(names, series, strict=True):
        by_step: dict[int, dict[str, float]] = {}
        for metric, each in of_run.items():
            known = each.where(each.measured)
            for step, value in zip(known.steps.tolist(), known.values.tolist(), strict=True):
                by_step.setdefault(step, {})[metric] = value
        for step, told in sorted(by_step.items()):
            rows.append([name, step, *(told.get(metric, "") for metric in metrics)])
    return _table(["run", "step", *metrics], rows)


def _cells(series: Series) -> list[object]:
    return [
        value if measured else ""
        for value, measured in zip(series.values.tolist(), series.measured.tolist(), strict=True)
    ]


def _instant(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat() if isfinite(at) else ""


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return lines.getvalue()
