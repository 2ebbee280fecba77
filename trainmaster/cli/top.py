"""`trainmaster top`: the fleet in a terminal, looked at again and again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli.output import shown
from trainmaster.cli.pace import TERMINAL
from trainmaster.cli.quantities import duration_text, instant, number_text
from trainmaster.cli.session import Session, session_of
from trainmaster.errors import UnavailableError

if TYPE_CHECKING:
    from rich.console import RenderableType

MOST_ENDED = 5
"""Runs that are over and still shown."""


def top(
    context: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Look once and end.")] = False,
    every: Annotated[float, typer.Option(min=0.5, help="Seconds between two looks.")] = 2.0,
) -> None:
    """Show runs, nodes and what is wrong now; Ctrl-C ends it."""
    session = session_of(context)
    if once or not session.output.stdout.isatty():
        session.output.console(session.output.stdout).print(screen(_look(session), _now()))
        return
    from rich.live import Live

    seen: dict[str, Any] | None = None
    console = session.output.console(session.output.stdout)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            away = ""
            try:
                seen = _look(session)
            except UnavailableError as error:
                if seen is None:
                    raise
                away = f"{error.message}; training goes on, this is what was last known"
            live.update(screen(seen, _now(), away), refresh=True)
            session.sleep(every)


def _look(session: Session) -> dict[str, Any]:
    return {
        "runs": session.api.get("/v1/runs", limit=200),
        "nodes": session.api.get("/v1/nodes"),
        "alerts": session.api.get("/v1/alerts", state="firing"),
        "incidents": session.api.get("/v1/incidents", state="waiting"),
    }


def _now() -> datetime:
    return datetime.now(UTC)


def screen(seen: dict[str, Any], now: datetime, away: str = "") -> RenderableType:
    """Return what the terminal shows of what was seen."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(away, style="bold")] if away else []
    parts.append(_table(RUN_COLUMNS, run_rows(seen["runs"], seen["alerts"], now)))
    if not seen["runs"]:
        parts.append(Text("No run yet: `trainmaster submit SPEC` starts one."))
    parts += [Text(""), _table(NODE_COLUMNS, node_rows(seen["nodes"], now))]
    for incident in seen["incidents"]:
        told = f"{incident['run']} waits for an answer: {incident.get('because') or ''} "
        parts.append(Text(shown(f"{told}(trainmaster approve {incident['id']})"), style="bold"))
    return Group(*parts)


RUN_COLUMNS = ("RUN", "NAME", "STATE", "STEP", "LOSS", "TOKENS/S", "SEEN", "WRONG NOW")
NODE_COLUMNS = ("NODE", "STATE", "SLOTS", "TAKEN", "SEEN", "RUNS")


def run_rows(
    runs: Sequence[dict[str, Any]], alerts: Sequence[dict[str, Any]], now: datetime
) -> list[list[str]]:
    """Return a line for each run, what moves first, and of those that are over the newest."""
    moving = [run for run in reversed(runs) if run["state"] not in TERMINAL]
    ended = [run for run in reversed(runs) if run["state"] in TERMINAL]
    return [_run_row(run, alerts, now) for run in (*moving, *ended[:MOST_ENDED])]


def _run_row(run: dict[str, Any], alerts: Sequence[dict[str, Any]], now: datetime) -> list[str]:
    firing = sorted({str(each["rule"]) for each in alerts if each.get("run") == run["id"]})
    wrong = f"firing: {', '.join(firing)}" if firing else ""
    if not firing and run["state"] not in {"running", "succeeded"}:
        wrong = run.get("because") or ""
    return [
        str(run["id"]),
        str(run.get("name") or ""),
        str(run["state"]),
        f"{run.get('step') or 0}/{run.get('target_steps') or '-'}",
        number_text(run.get("loss")),
        number_text(run.get("tokens_per_s")),
        _ago(run.get("last_point_at"), now),
        wrong,
    ]


def node_rows(nodes: Sequence[dict[str, Any]], now: datetime) -> list[list[str]]:
    """Return a line for each node."""
    return [
        [
            str(node["id"]),
            str(node["state"]) + (", cordoned" if node.get("cordoned") else ""),
            str(node.get("slots") or 0),
            str(len(node.get("taken") or [])),
            _ago(node.get("last_seen_at"), now),
            ", ".join(sorted({str(each["run"]) for each in node.get("taken") or []})),
        ]
        for node in nodes
    ]


def _ago(text: str | None, now: datetime) -> str:
    at = instant(text)
    return "-" if at is None else duration_text(max(0.0, (now - at).total_seconds()))


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(shown(cell)) for cell in row))
    return table
