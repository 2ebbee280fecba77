"""Commands that only read: runs and what belongs to them, nodes, series, logs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

from trainmaster.cli.pace import TERMINAL
from trainmaster.cli.quantities import bytes_text, clock_text, duration_text, number_text
from trainmaster.cli.session import Session, segment, session_of
from trainmaster.errors import UnavailableError
from trainmaster.wire import MOST_SKEW_S

Run = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]

MAX_PAGE = 1000
FOLLOW_S = 1.0


def runs(context: typer.Context, as_json: AsJson = False) -> None:
    """List all runs, oldest first."""
    session = session_of(context)
    found = session.api.get("/v1/runs")
    if as_json:
        session.output.json(found)
        return
    session.output.table(
        ["RUN", "NAME", "STATE", "STEP", "LOSS", "CREATED", "BECAUSE"],
        [
            [
                run["id"],
                run["name"],
                run["state"],
                f"{run.get('step') or 0}/{run.get('target_steps') or '-'}",
                number_text(run.get("loss")),
                clock_text(run.get("created_at")),
                run.get("because") or "",
            ]
            for run in found
        ],
        "There are no runs yet: `trainmaster submit SPEC` starts one.",
    )


def show(context: typer.Context, run: Run, as_json: AsJson = False) -> None:
    """Show one run with its attempts and ranks."""
    session = session_of(context)
    found = session.api.get(f"/v1/runs/{segment('run', run)}")
    if as_json:
        session.output.json(found)
        return
    session.output.fields(_summary(found))
    if found.get("attempts"):
        session.output.line()
        session.output.table(
            ["GENERATION", "STATE", "STEPS", "FROM", "SKIPS", "LR", "CAUSE"],
            [_attempt_row(attempt) for attempt in found["attempts"]],
            "",
        )
    if found.get("ranks"):
        session.output.line()
        session.output.table(
            ["RANK", "NODE", "PID", "REPLICA", "STAGE", "STATE", "STEP", "SEEN", "EXIT"],
            [
                [
                    rank.get(key)
                    for key in ("rank", "node", "pid", "replica", "stage", "state", "last_step")
                ]
                + [clock_text(rank.get("last_seen_at")), rank.get("exit_code")]
                for rank in found["ranks"]
            ],
            "",
        )


def _summary(run: dict[str, Any]) -> dict[str, object]:
    speed = run.get("tokens_per_s")
    is_on_its_way = run["state"] not in TERMINAL | {run.get("desired")}
    return {
        "run": f"{run['id']} ({run['name']})",
        "state": run["state"] + (f", wanted {run['desired']}" if is_on_its_way else ""),
        "because": run.get("because"),
        "cannot be read": run.get("unreadable"),
        "code": run.get("code"),
        "step": f"{run.get('step') or 0} of {run.get('target_steps')}",
        "loss": number_text(run.get("loss")),
        "gradient norm": number_text(run.get("grad_norm")),
        "speed": f"{number_text(speed)} tokens/s" if speed is not None else None,
        "skipped steps": run.get("skipped_steps") or None,
        "generation": run.get("generation"),
        "created": clock_text(run.get("created_at")),
        "ended": clock_text(run["ended_at"]) if run.get("ended_at") else None,
        "data": (run.get("workload") or {}).get("data_sha256"),
        "weights": run.get("weights_sha256"),
    }


def _attempt_row(attempt: dict[str, Any]) -> list[object]:
    first, last = attempt.get("first_step"), attempt.get("last_step")
    skips = ", ".join(f"{first}-{last}" for first, last in attempt.get("skip") or [])
    return [
        attempt["generation"],
        attempt["state"],
        f"{first}-{last}" if first is not None else "-",
        attempt.get("resumed_from_checkpoint") or "the beginning",
        skips or "-",
        attempt.get("lr_factor"),
        attempt.get("cause") or "",
    ]


def events(
    context: typer.Context,
    run: Run,
    follow: Annotated[bool, typer.Option("--follow", help="Go on as they happen.")] = False,
    as_json: AsJson = False,
) -> None:
    """List what has happened to a run, with the reasons; with `--json --follow` one a line."""
    session = session_of(context)
    path = f"/v1/runs/{segment('run', run)}/events"
    if not follow:
        # A node's events arrive a moment after what the control plane has recorded meanwhile.
        found = sorted(_all_events(session, path, 0), key=_happened_at)
        if as_json:
            session.output.json(found)
            return
        session.output.table(["AT", "GEN", "EVENT", "BY", "BECAUSE"], map(_event_row, found), "-")
        return
    after = 0
    while True:
        try:
            for event in _all_events(session, path, after):
                after = event["id"]
                if as_json:
                    session.output.compact_json(event)
                else:
                    session.output.line("  ".join(str(cell) for cell in _event_row(event)))
        except UnavailableError as error:
            session.output.say(f"{error.message}; waiting for it")
        session.sleep(FOLLOW_S)


def _happened_at(event: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(event["at"])


def _all_events(session: Session, path: str, after: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        page = session.api.get(path, after=after or None, limit=MAX_PAGE)
        found.extend(page)
        if len(page) < MAX_PAGE:
            return found
        after = page[-1]["id"]


def _event_row(event: dict[str, Any]) -> list[object]:
    return [
        clock_text(event["at"]),
        event.get("generation") or "-",
        event["kind"],
        event.get("actor") or "-",
        event.get("because") or "",
    ]


def alerts(
    context: typer.Context,
    run: Annotated[str | None, typer.Argument(metavar="[RUN]")] = None,
    as_json: AsJson = False,
) -> None:
    """List alerts, of one run or of all."""
    session = session_of(context)
    found = session.api.get(_of_run_or_all(run, "alerts"))
    if as_json:
        session.output.json(found)
        return
    session.output.table(
        ["SINCE", "RUN", "RULE", "SCOPE", "STATE", "SEVERITY", "VALUE", "FIRST BAD STEP"],
        [
            [
                clock_text(alert.get("since")),
                alert["run"],
                alert["rule"],
                alert["scope"],
                alert["state"] + (", flapping" if alert.get("flapping") else "") + _of_drill(alert),
                alert["severity"],
                number_text(alert.get("value")),
                alert.get("first_bad_step"),
            ]
            for alert in found
        ],
        "There are no alerts.",
    )


def incidents(
    context: typer.Context,
    run: Annotated[str | None, typer.Argument(metavar="[RUN]")] = None,
    as_json: AsJson = False,
) -> None:
    """List incidents with the actions taken, of one run or of all."""
    session = session_of(context)
    found = session.api.get(_of_run_or_all(run, "incidents"))
    if as_json:
        session.output.json(found)
        return
    session.output.table(
        ["INCIDENT", "RUN", "OPENED", "STATE", "RUNG", "MTTR", "BECAUSE"],
        [
            [
                incident["id"],
                incident["run"],
                clock_text(incident["opened_at"]),
                (incident.get("closed_as") or incident["state"]) + _of_drill(incident),
                incident.get("rung"),
                duration_text(incident.get("mttr_s")),
                incident.get("because") or "",
            ]
            for incident in found
        ],
        "There are no incidents.",
    )


def _of_drill(found: dict[str, Any]) -> str:
    return f" (drill {found['drill']})" if found.get("drill") else ""


def _of_run_or_all(run: str | None, what: str) -> str:
    return f"/v1/{what}" if run is None else f"/v1/runs/{segment('run', run)}/{what}"


def checkpoints(
    context: typer.Context,
    run: Run,
    would_retire: Annotated[
        bool,
        typer.Option("--would-retire", help="Tell which would go now, and why; change nothing."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the checkpoints of a run."""
    session = session_of(context)
    if would_retire:
        _retention(session, run, as_json=as_json)
        return
    found = session.api.get(f"/v1/runs/{segment('run', run)}/checkpoints")
    if as_json:
        session.output.json(found)
        return
    session.output.table(
        ["CHECKPOINT", "STEP", "GEN", "STATE", "SIZE", "CREATED", "BECAUSE"],
        [
            [
                checkpoint["id"],
                checkpoint["step"],
                checkpoint["generation"],
                _checkpoint_state(checkpoint),
                bytes_text(checkpoint.get("bytes")),
                clock_text(checkpoint.get("created_at")),
                checkpoint.get("because") or "",
            ]
            for checkpoint in found
        ],
        "There are no checkpoints yet.",
    )


def _retention(session: Session, run: str, *, as_json: bool) -> None:
    found = session.api.get(f"/v1/runs/{segment('run', run)}/retention")
    if as_json:
        session.output.json(found)
        return
    session.output.table(
        ["CHECKPOINT", "STEP", "GEN", "STATE", "GOES", "BECAUSE"],
        [
            [
                verdict["checkpoint"],
                verdict["step"],
                verdict["generation"],
                verdict["state"],
                "yes" if verdict["goes"] else "no",
                verdict["because"],
            ]
            for verdict in found
        ],
        "There are no checkpoints yet.",
    )


def _checkpoint_state(checkpoint: dict[str, Any]) -> str:
    marks = [mark for mark in ("abandoned", "pinned") if checkpoint.get(mark)]
    return ", ".join([checkpoint["state"], *marks])


def nodes(context: typer.Context, as_json: AsJson = False) -> None:
    """List the nodes."""
    session = session_of(context)
    found = session.api.get("/v1/nodes")
    if as_json:
        session.output.json(found)
        return
    session.output.table(
        ["NODE", "STATE", "SLOTS", "DEVICES", "LABELS", "SEEN", "BECAUSE"],
        [
            [
                node["name"],
                node["state"] + (", cordoned" if node.get("cordoned") else ""),
                node.get("slots"),
                ", ".join(str(device.get("name")) for device in node.get("devices") or []) or "-",
                node.get("labels") or "-",
                clock_text(node.get("last_seen_at")),
                _what_is_odd(node),
            ]
            for node in found
        ],
        "There are no nodes yet: `trainmaster agent` on a machine makes it one.",
    )


def _what_is_odd(node: dict[str, Any]) -> str:
    """Return why a node gets no ranks, and by how much its clock is off."""
    skew_s = float(node.get("clock_skew_s") or 0.0)
    off = f"its clock is off by {skew_s:.1f} s" if abs(skew_s) > MOST_SKEW_S else ""
    because = node.get("cordoned_because") if node.get("cordoned") else ""
    return "; ".join(filter(None, (because, off)))


def logs(
    context: typer.Context,
    run: Run,
    rank: Annotated[int, typer.Option(min=0, help="Which rank.")],
    tail: Annotated[int, typer.Option(min=1, max=100_000, help="How many last lines.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Print what a rank of the newest generation printed."""
    session = session_of(context)
    found = session.api.get(f"/v1/runs/{segment('run', run)}/logs", rank=rank, tail=tail)
    if as_json:
        session.output.json(found)
        return
    for line in found["lines"]:
        session.output.line(line)


def series(
    context: typer.Context,
    run: Run,
    metric: Annotated[str, typer.Argument(metavar="METRIC")],
    rank: Annotated[int | None, typer.Option(min=0, help="One rank's; default the run's.")] = None,
    generation: Annotated[int | None, typer.Option(min=1, help="One generation's.")] = None,
    all_generations: Annotated[
        bool, typer.Option("--all-generations", help="Abandoned branches too.")
    ] = False,
    points: Annotated[int, typer.Option(min=2, help="At most so many points.")] = 1000,
    as_json: AsJson = False,
) -> None:
    """Print one series: the surviving lineage unless asked otherwise."""
    session = session_of(context)
    found = session.api.get(
        f"/v1/runs/{segment('run', run)}/series",
        metric=metric,
        rank=rank,
        generation=generation,
        all_generations=True if all_generations else None,
        points=points,
    )
    if as_json:
        session.output.json(found)
        return
    session.output.table(
        ["GENERATION", "STEP", f"{metric} ({found['unit']})", "AT"],
        [
            [point[0], point[1], number_text(point[2], 6), clock_text(point[3])]
            for point in found["points"]
        ],
        "There are no points.",
    )
