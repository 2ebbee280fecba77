"""Points of a run as files: CSV, Parquet, TensorBoard.

What was not measured is an empty cell (CSV) or null (Parquet); what was measured and is not finite
stays so: `nan`, `inf`, `-inf`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainmaster.errors import UserError

Row = tuple[int, int]
"""Generation and step."""
_INSTALL = "pip install 'trainmaster"


class Points:
    """Points of several metrics, by generation and step.

    Attributes:
        rows: of each row when its step ended, in seconds since the epoch.
        metrics: of each metric its values by row; None is what was not measured.
        is_thinned: whether some were left out for ever as they grew old.
    """

    def __init__(self) -> None:
        self.rows: dict[Row, float] = {}
        self.metrics: dict[str, dict[Row, float | None]] = {}
        self.is_thinned = False

    def add(self, metric: str, columns: Mapping[str, list[Any]], *, is_thinned: bool) -> None:
        """Take one answer of the control plane, columns `generation`, `step`, `value`, `at`."""
        if not columns["step"]:
            return
        self.is_thinned = self.is_thinned or is_thinned
        values = self.metrics.setdefault(metric, {})
        for generation, step, value, at in zip(
            *(columns[name] for name in ("generation", "step", "value", "at")), strict=True
        ):
            self.rows[generation, step] = at
            values[generation, step] = None if value is None else float(value)

    def in_order(self) -> Iterator[tuple[Row, datetime, list[float | None]]]:
        """Yield each row with its instant and its values in the order of `metrics`."""
        for row in sorted(self.rows):
            at = datetime.fromtimestamp(self.rows[row], UTC)
            yield row, at, [values.get(row) for values in self.metrics.values()]


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """Give a file to write beside `path`, which it becomes once it is whole."""
    beside = path.with_name(f".{path.name}.tmp")
    try:
        yield beside
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_csv(points: Points, path: Path) -> None:
    """Write a header and a row per step; `trainmaster backtest` reads such a file."""
    with _whole(path) as beside, beside.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["generation", "step", "at", *points.metrics])
        for (generation, step), at, values in points.in_order():
            told = ["" if value is None else repr(value) for value in values]
            writer.writerow([generation, step, _instant(at), *told])


def _instant(at: datetime) -> str:
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def write_parquet(points: Points, path: Path) -> None:
    """Write one row group per million steps."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise UserError(f"--format parquet needs {error.name}: {_INSTALL}[parquet]'") from error
    rows = list(points.in_order())
    columns: dict[str, Any] = {
        "generation": pyarrow.array([row[0] for row, _, _ in rows], pyarrow.int64()),
        "step": pyarrow.array([row[1] for row, _, _ in rows], pyarrow.int64()),
        "at": pyarrow.array([at for _, at, _ in rows], pyarrow.timestamp("us", "UTC")),
    }
    for index, metric in enumerate(points.metrics):
        columns[metric] = pyarrow.array(
            [values[index] for _, _, values in rows], pyarrow.float64(), from_pandas=False
        )
    with _whole(path) as beside:
        parquet.write_table(pyarrow.table(columns), beside, row_group_size=1_000_000)


def write_tensorboard(points: Points, folder: Path) -> None:
    """Write an event file, one folder per generation where there are several."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise UserError(
            f"--format tensorboard needs {error.name}: {_INSTALL}[tensorboard]'"
        ) from error
    generations = {generation for generation, _ in points.rows}
    writers = {
        generation: SummaryWriter(
            str(folder / f"g{generation}" if len(generations) > 1 else folder),
            write_to_disk=True,
        )
        for generation in sorted(generations)
    }
    try:
        for (generation, step), at, values in points.in_order():
            for metric, value in zip(points.metrics, values, strict=True):
                if value is not None:
                    writers[generation].add_scalar(metric, value, step, walltime=at.timestamp())
    finally:
        for writer in writers.values():
            writer.close()
