"""`trainmaster export`: the exact points of a run, as a file that other programs read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.progress import Progress

from trainmaster.cli import point_files
from trainmaster.cli.point_files import Points
from trainmaster.cli.session import Session, segment, session_of
from trainmaster.errors import UserError
from trainmaster.metrics import BY_NAME, DERIVED

PAGE_STEPS = 100_000
"""Steps of one metric that are asked for at once."""
ALL_POINTS = 10_000_000
"""As many as an answer may have: nothing is down-sampled."""

_WRITERS: dict[str, Callable[[Points, Path], None]] = {
    "csv": point_files.write_csv,
    "parquet": point_files.write_parquet,
    "tensorboard": point_files.write_tensorboard,
}


def export(
    context: typer.Context,
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")],
    to: Annotated[
        Literal["csv", "parquet", "tensorboard"], typer.Option("--format", help="What to write.")
    ],
    out: Annotated[Path, typer.Option(help="The file, or for tensorboard the folder, to write.")],
    metric: Annotated[
        list[str] | None, typer.Option(help="Only this one; may be given several times.")
    ] = None,
    rank: Annotated[int | None, typer.Option(min=0, help="One rank's; default the run's.")] = None,
    all_generations: Annotated[
        bool, typer.Option("--all-generations", help="Abandoned branches too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Write every point of a run: one row per generation and step, one column per metric."""
    session = session_of(context)
    _refuse_unfit(out, is_folder=to == "tensorboard")
    known = [*BY_NAME, *DERIVED]
    for name in metric or ():
        if name not in known:
            raise UserError(f"--metric: {name!r} is not a metric; there are {', '.join(known)}")
    points = _read(
        session, run, metric or known, rank=rank, all_generations=True if all_generations else None
    )
    if not points.rows:
        raise UserError(f"run {run} has no points of these metrics yet")
    _WRITERS[to](points, out)
    if points.is_thinned:
        session.output.say(
            "Some points are not there any more: old ones were thinned out by the control plane's "
            "retention."
        )
    if as_json:
        session.output.json(
            {
                "run": run,
                "format": to,
                "path": str(out.absolute()),
                "rows": len(points.rows),
                "metrics": list(points.metrics),
                "exact": not points.is_thinned,
            }
        )
        return
    session.output.line(f"{len(points.rows):,} steps of {len(points.metrics)} metrics: {out}")


def _refuse_unfit(out: Path, *, is_folder: bool) -> None:
    """Refuse before anything is fetched what could not be written afterwards."""
    if not out.absolute().parent.is_dir():
        raise UserError(f"--out: the folder {out.absolute().parent} does not exist; make it first")
    if is_folder and (out.is_file() or (out.is_dir() and any(out.iterdir()))):
        raise UserError(f"--out: {out} is not an empty folder; name a new one")
    if not is_folder and out.is_dir():
        raise UserError(f"--out: {out} is a folder; name a file in it")


def _read(session: Session, run: str, metrics: Iterable[str], **asked: int | bool | None) -> Points:
    """Fetch all points of `metrics`; one without any is left out."""
    path = f"/v1/runs/{segment('run', run)}"
    attempts = session.api.get(path)["attempts"]
    last_step = max((each["last_step"] or 0 for each in attempts), default=0)
    pages = range(0, last_step, PAGE_STEPS)
    points = Points()
    metrics = list(metrics)
    console = session.output.console(session.output.stderr)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("Reading", total=len(metrics) * len(pages))
        for metric in metrics:
            for after_step in pages:
                found: dict[str, Any] = session.api.get(
                    f"{path}/series",
                    metric=metric,
                    after_step=after_step or None,
                    until_step=after_step + PAGE_STEPS,
                    points=ALL_POINTS,
                    columns=True,
                    **asked,
                )
                points.add(metric, found["columns"], is_thinned=bool(found["rolled_up"]))
                bar.advance(task)
    return points
