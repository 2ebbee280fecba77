"""What happened to a run, under its charts and on their axis: a line each for generations, what
they left behind, alerts, actions and checkpoints. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

from dashboard.charts.axis import Axis, Window
from dashboard.charts.palette import ABANDONED, BAD, COLORS, MARK, SURVIVING
from dashboard.charts.panels import Panel, Words, frame

Row = Literal["generation", "abandoned", "alert", "action", "checkpoint"]
ROWS: tuple[Row, ...] = ("generation", "abandoned", "alert", "action", "checkpoint")
MOST_SHOWN = 200
"""Of one row; the newest are."""

_CHECKPOINTS = {
    "trusted": ("square", COLORS[2]),
    "committed": ("square-open", COLORS[0]),
    "quarantined": ("x", BAD),
    "writing": ("circle-open", MARK),
    "retired": ("line-ns-open", ABANDONED),
}
_FIRED = frozenset({"firing", "resolved"})
Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Happening:
    """Something at a step, or over the steps up to `until`; `text` is shown when pointed at."""

    row: Row
    step: int
    text: str
    symbol: str
    color: str
    generation: int | None = None
    until: int | None = None


def generations(
    attempts: Sequence[Json], survivors: Mapping[int, int], label: str
) -> list[Happening]:
    """Return how far each generation reached; what a rollback left is grey.

    `label` is a pattern with {generation} and {cause}.
    """
    found = []
    for attempt in attempts:
        number = int(attempt["generation"])
        first, last = attempt.get("first_step"), attempt.get("last_step")
        if first is None or last is None:
            continue
        text = label.format(generation=number, cause=attempt.get("cause") or "")
        kept = min(int(last), survivors.get(number, -1))
        if kept >= int(first):
            found.append(
                Happening("generation", int(first), text, "line-ns", SURVIVING, number, kept)
            )
        if kept < int(last):
            left = max(int(first), kept + 1)
            found.append(
                Happening("abandoned", left, text, "line-ns-open", ABANDONED, number, int(last))
            )
    return found


def alerts(told: Sequence[Json]) -> list[Happening]:
    """Return the alerts that have fired, at their first bad step."""
    return [
        Happening("alert", int(each["first_bad_step"]), str(each.get("rule") or ""), "diamond", BAD)
        for each in told
        if each.get("first_bad_step") is not None and each.get("state") in _FIRED
    ]


def actions(incidents: Sequence[Json]) -> list[Happening]:
    """Return what was done about incidents, at the last bad step that was then known."""
    return [
        Happening(
            "action",
            int(step),
            f"{taken.get('action')} · {incident.get('rule') or ''}",
            "triangle-up",
            COLORS[1],
            taken.get("generation"),
        )
        for incident in incidents
        for taken in incident.get("actions") or []
        if (step := taken.get("last_bad_step") or incident.get("first_bad_step")) is not None
    ]


def checkpoints(told: Sequence[Json], say: Mapping[str, str]) -> list[Happening]:
    """Return the checkpoints with how far each is trusted; `say` names that."""
    found = []
    for each in told:
        state = str(each.get("state"))
        symbol, color = _CHECKPOINTS.get(state, ("circle", MARK))
        text = f"{each['id']} · {say.get(state, state)}"
        found.append(
            Happening("checkpoint", int(each["step"]), text, symbol, color, int(each["generation"]))
        )
    return found


def happenings_panel(
    name: str,
    title: str,
    happened: Sequence[Happening],
    *,
    labels: Mapping[str, str],
    words: Words,
    axis: Axis,
    extent: Window | None,
    revision: str,
) -> Panel:
    """Return the panel; `labels` names its rows."""
    traces = [
        trace
        for row in ROWS
        for trace in _row(labels[row], [each for each in happened if each.row == row], axis)
    ]
    layout = frame("", words, (), axis=axis, extent=extent, revision=revision)
    layout["hovermode"] = "closest"
    layout["showlegend"] = False
    layout["yaxis"] = {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": [labels[row] for row in reversed(ROWS)],
        "range": [-0.6, len(ROWS) - 0.4],
        "fixedrange": True,
        "showgrid": False,
    }
    counts = ", ".join(
        f"{labels[row]}: {sum(each.row == row for each in happened)}" for row in ROWS
    )
    return {
        "id": name,
        "title": title,
        "alt": f"{title}. {counts}",
        "note": "" if traces else words["empty"],
        "traces": traces,
        "layout": layout,
        "wide": True,
        "height": 210,
    }


def _row(label: str, happened: Sequence[Happening], axis: Axis) -> list[dict[str, Any]]:
    newest = happened[-MOST_SHOWN:]
    spans = [each for each in newest if each.until is not None]
    points = [each for each in newest if each.until is None]
    traces = [_span(label, each, axis) for each in spans]
    if points:
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [axis.place(each.step, each.generation) for each in points],
                "y": [label] * len(points),
                "text": [_told(each) for each in points],
                "hovertemplate": "%{text}<extra></extra>",
                "marker": {
                    "symbol": [each.symbol for each in points],
                    "color": [each.color for each in points],
                    "size": 10,
                    "line": {"width": 1.5, "color": [each.color for each in points]},
                },
            }
        )
    return traces


def _span(label: str, each: Happening, axis: Axis) -> dict[str, Any]:
    assert each.until is not None
    abandoned = each.color == ABANDONED
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": [axis.place(step, each.generation) for step in (each.step, each.until)],
        "y": [label] * 2,
        "text": [_told(each)] * 2,
        "hovertemplate": "%{text}<extra></extra>",
        "line": {
            "width": 3 if abandoned else 9,
            "color": each.color,
            "dash": "dot" if abandoned else "solid",
        },
        "marker": {"symbol": "line-ns-open", "size": 14, "color": each.color},
    }


def _told(each: Happening) -> str:
    steps = f"{each.step:,}" if each.until is None else f"{each.step:,} – {each.until:,}"
    return f"{escape(each.text)} · {steps}"
