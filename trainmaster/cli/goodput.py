"""`trainmaster goodput`: where wall time went, and what failures cost."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from trainmaster.cli.quantities import duration_text
from trainmaster.cli.read import AsJson
from trainmaster.cli.session import Session, segment, session_of


def goodput(
    context: typer.Context,
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="The run's id; without one: all runs.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show where the wall time of a run, or of the newest runs together, went."""
    session = session_of(context)
    if run is None:
        found = session.api.get("/v1/goodput")
        if as_json:
            session.output.json(found)
            return
        session.output.line(f"{found['runs']} runs, the newest first.")
        _show(session, found["goodput"], found["recoveries"])
        return
    spent = session.api.get(f"/v1/runs/{segment('run', run)}/goodput")
    if as_json:
        session.output.json(spent)
        return
    _show(session, spent, session.api.get(f"/v1/runs/{segment('run', run)}/recoveries"))


def _show(session: Session, spent: dict[str, Any], recoveries: dict[str, Any]) -> None:
    wall_s = spent.get("wall_s") or 0.0
    buckets = {
        name: seconds
        for name, seconds in spent.items()
        if name not in {"wall_s", "productive_ratio"} and seconds
    }
    session.output.table(
        ["WHERE", "TIME", "SHARE"],
        [
            [name, duration_text(seconds), f"{seconds / wall_s:.1%}" if wall_s else "-"]
            for name, seconds in [*buckets.items(), ("wall_s", wall_s)]
        ],
        "-",
    )
    if not recoveries["restarts"]:
        return
    causes = recoveries["restarts_by_cause"]
    session.output.line(
        f"{recoveries['restarts']} attempts began by themselves: "
        + ", ".join(f"{cause} {count}" for cause, count in causes.items())
        + (f"; {recoveries['drills']} after drills" if recoveries["drills"] else "")
        + "."
    )
    if recoveries["recovered"]:
        session.output.line(
            f"Time to recovery: {duration_text(recoveries['mttr_p50_s'])} in the median, "
            f"{duration_text(recoveries['mttr_p95_s'])} at the 95th percentile; "
            f"{recoveries['lost_steps']} steps were done again."
        )
