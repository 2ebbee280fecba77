"""Timelines: which steps of a run were recorded, and what each rank did in one of them."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from control import chrome_trace, timelines
from control.api.answers import Answer
from control.api.bodies import BEYOND_COUNTING
from control.api.context import WithShell
from control.api.door import DoorRoute
from control.db import queries
from control.db import timelines as stored

router = APIRouter(prefix="/v1/runs", route_class=DoorRoute, tags=["runs"])


@router.get("/{run}/timelines")
def list_timelines(run: str, shell: WithShell) -> Response:
    """List the recorded steps of a run, oldest first."""
    with shell.db.read() as connection:
        queries.run_row(connection, run)
        return Answer(stored.listed(connection, run))


@router.get("/{run}/timelines/{step}")
def get_timeline(
    run: str,
    step: Annotated[int, Path(ge=1, lt=BEYOND_COUNTING)],
    shell: WithShell,
    generation: Annotated[int | None, Query(ge=1, lt=BEYOND_COUNTING)] = None,
    format: Literal["json", "chrome"] = "json",  # noqa: A002
) -> Response:
    """Show what each rank did in a recorded step, and what was planned; `format=chrome` as a trace
    for Perfetto.
    """
    with shell.db.read() as connection:
        queries.run_row(connection, run)
        which, found = stored.of_step(connection, run, step, generation=generation)
        [attempt] = [
            each for each in queries.attempts_of(connection, run) if each.generation == which
        ]
    told = {
        "run": run,
        "generation": which,
        "step": step,
        **timelines.document(attempt.plan, found),
    }
    return Answer(chrome_trace.trace_of(told) if format == "chrome" else told)
