"""`trainmaster timeline`: record a step, and show or save what each rank did in it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from trainmaster.cli.asking import TIMEOUT_S, acknowledged, ask
from trainmaster.cli.quantities import clock_text
from trainmaster.cli.read import AsJson, Run
from trainmaster.cli.session import Session, segment, session_of
from trainmaster.errors import NotFoundError, TrainmasterError, UserError

ARRIVE_S = 60.0
"""For how long a recorded step is waited for to arrive."""
_LOOK_S = 0.2


def timeline(
    context: typer.Context,
    run: Run,
    step: Annotated[
        int | None, typer.Option(min=1, help="Which recorded step; the newest by default.")
    ] = None,
    generation: Annotated[
        int | None, typer.Option(min=1, help="Of which generation; the newest by default.")
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="Have the next step recorded, and wait for it.")
    ] = False,
    chrome: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write a trace for ui.perfetto.dev.")
    ] = None,
    why: Annotated[str, typer.Option(help="The reason, for the audit log.")] = "",
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait.")] = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Show where the time of a recorded step went, rank by rank, beside the plan."""
    session = session_of(context)
    path = f"/v1/runs/{segment('run', run)}/timelines"
    if record:
        if step is not None or generation is not None:
            raise UserError("--record takes the next step: leave --step and --generation out")
        request = acknowledged(session, ask(session, run, "timeline", {}, why), timeout)
        step = int(request["step"]) + 1
        _await_arrival(session, run, path, step)
    recorded = session.api.get(path)
    if step is None:
        mine = [each for each in recorded if generation in {None, each["generation"]}]
        if not mine:
            raise NotFoundError(
                f"no step of run {run} was recorded: `trainmaster timeline {run} --record` records "
                "the next one, telemetry.timeline_every in the spec one every so many"
            )
        step = mine[-1]["step"]
    found = session.api.get(f"{path}/{step}", generation=generation)
    if chrome is not None:
        trace = session.api.get(f"{path}/{step}", generation=generation, format="chrome")
        _write(chrome, trace)
        session.output.say(f"wrote {chrome}: open it at https://ui.perfetto.dev")
    if as_json:
        session.output.json(found)
    else:
        _show(session, found)


def _await_arrival(session: Session, run: str, path: str, step: int) -> None:
    deadline = session.monotonic() + ARRIVE_S
    ranks = len(session.api.get(f"/v1/runs/{segment('run', run)}/ranks"))
    while session.monotonic() < deadline:
        if any(each["step"] == step and each["ranks"] >= ranks for each in session.api.get(path)):
            return
        session.sleep(_LOOK_S)
    raise TrainmasterError(
        f"step {step} was to be recorded and has not arrived from all {ranks} ranks within "
        f"{ARRIVE_S:.0f} s: look again with --step {step}"
    )


def _write(path: str, trace: Any) -> None:
    import json

    Path(path).write_text(json.dumps(trace, allow_nan=False), encoding="utf-8")


def _show(session: Session, found: dict[str, Any]) -> None:
    planned = {
        rank["rank"]: rank["bubble_ratio"]
        for pipeline in found["planned"]
        for rank in pipeline["ranks"]
    }
    session.output.fields(
        {
            "step": f"{found['step']} of generation {found['generation']}",
            "at": clock_text(found["at"]),
            "clocks agree within": f"{found['clock_error_s'] * 1e3:.3f} ms",
            "ranks that told nothing": found["missing_ranks"] or None,
            "no plan": next((each["because"] for each in found["planned"]), None),
        }
    )
    session.output.line()
    session.output.table(
        [
            *("RANK", "REPLICA", "PLACE", "NODE", "STEP", "COMPUTE", "OPTIMIZER", "EXPOSED"),
            *("IDLE", "BUBBLE", "PLANNED", "UNSENT", "UNDER WAY", "UNASKED"),
        ],
        [
            [
                rank["rank"],
                rank["replica"],
                rank["place"],
                rank["node"],
                _ms(rank["end_s"] - rank["start_s"]),
                _percent(rank["summary"]["compute_ratio"]),
                _percent(rank["summary"]["optimizer_ratio"]),
                _percent(rank["summary"]["exposed_comm_ratio"]),
                _percent(rank["summary"]["idle_ratio"]),
                _percent(rank["summary"]["bubble_ratio"]),
                _percent(planned.get(rank["rank"])),
                _ms(rank["summary"]["waited_unsent_s"]),
                _ms(rank["summary"]["waited_under_way_s"]),
                _ms(rank["summary"]["waited_unasked_s"]),
            ]
            for rank in found["ranks"]
        ],
        "",
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def _percent(ratio: float | None) -> str | None:
    return None if ratio is None else f"{ratio:.1%}"
