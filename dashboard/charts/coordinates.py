"""Parallel coordinates: what runs were given and what came of it, one line a run. Pure.

Each axis has its own scale, from its lowest value to its highest; these stand at its ends, and
every value is told when its point is pointed at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from dashboard.charts.palette import rank_line
from dashboard.charts.panels import Panel


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: its label, and the value of each run; None where a run has none."""

    label: str
    values: tuple[float | None, ...]

    @property
    def ends(self) -> tuple[float, float]:
        """Lowest and highest value."""
        known = [value for value in self.values if value is not None]
        return min(known), max(known)


def coordinates_panel(
    name: str, title: str, runs: Sequence[str], axes: Sequence[Axis], *, revision: str = ""
) -> Panel | None:
    """Return a panel with a line for each of `runs` over the axes in which they differ; None where
    there are fewer than two of these.
    """
    telling = [each for each in axes if len({*each.values} - {None}) > 1]
    if len(telling) < 2:
        return None
    places = [[_place(axis, value) for value in axis.values] for axis in telling]
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": escape(run),
            "x": list(range(len(telling))),
            "y": [place[row] for place in places],
            "text": [
                escape(f"{run} · {axis.label}: {_told(axis.values[row])}") for axis in telling
            ],
            "hovertemplate": "%{text}<extra></extra>",
            "connectgaps": True,
            "line": rank_line(row),
            "marker": {"size": 8},
        }
        for row, run in enumerate(runs)
    ]
    layout = {
        "uirevision": revision,
        "margin": {"l": 24, "r": 24, "t": 30, "b": 48},
        "hovermode": "closest",
        "xaxis": {
            "tickvals": list(range(len(telling))),
            "ticktext": [escape(axis.label) for axis in telling],
            "range": [-0.3, len(telling) - 0.7],
            "fixedrange": True,
        },
        "yaxis": {"range": [-0.12, 1.12], "visible": False, "fixedrange": True},
        "annotations": [
            {
                "x": column,
                "y": height,
                "text": _told(value),
                "showarrow": False,
                "yshift": 12 if height else -12,
                "font": {"size": 11},
            }
            for column, axis in enumerate(telling)
            for height, value in enumerate(axis.ends)
        ],
        "legend": {"orientation": "h", "x": 0, "y": 1.12, "yanchor": "bottom"},
        "showlegend": True,
    }
    return {
        "id": name,
        "title": title,
        "alt": f"{title}: " + ", ".join(axis.label for axis in telling),
        "note": "",
        "traces": traces,
        "layout": layout,
        "alone": True,
        "height": 320,
    }


def _place(axis: Axis, value: float | None) -> float | None:
    low, high = axis.ends
    return None if value is None else (value - low) / (high - low)


def _told(value: float | None) -> str:
    return "–" if value is None else f"{value:.5g}"
