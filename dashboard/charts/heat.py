"""Heat maps, in which the one that differs from the others is seen at a glance. Pure.

Colour says how far a value is from the median of its row, so that rows of different units stand
beside each other; the value itself is written into its cell, so nothing is told by colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dashboard.charts.panels import Panel

LOW, MIDDLE, HIGH = "#2E86DE", "rgba(127,138,153,.12)", "#E69F00"
FULL_AT = 0.3
"""How far from the median, as a share of it, is shown in full colour."""
Among = Literal["row", "all"]
MOST_WRITTEN = 24
"""With more columns than this the values are told when pointed at, not written."""


def heat_panel(
    name: str,
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: NDArray[np.float64],
    texts: Sequence[Sequence[str]],
    *,
    words: Mapping[str, str],
    among: Among = "row",
    revision: str = "",
) -> Panel:
    """Return a heat map.

    Args:
        values: [rows, columns]; NaN where nothing is known.
        texts: what is written into each cell.
        words: of the reader's language: median and empty.
        among: which values each is held against.
    """
    apart = deviation(values, among)
    known = np.isfinite(values)
    hover = [
        [
            escape(f"{row} · {column}: {text}")
            + (f" ({100 * share:+.0f}% · {words['median']})" if np.isfinite(share) else "")
            for column, text, share in zip(columns, line, shares, strict=True)
        ]
        for row, line, shares in zip(rows, texts, apart, strict=True)
    ]
    trace = {
        "type": "heatmap",
        "x": list(columns),
        "y": list(rows),
        "z": [[float(each) if np.isfinite(each) else None for each in line] for line in apart],
        "zmin": -FULL_AT,
        "zmax": FULL_AT,
        "colorscale": [[0, LOW], [0.5, MIDDLE], [1, HIGH]],
        "showscale": False,
        "xgap": 2,
        "ygap": 2,
        "text": [list(line) for line in texts],
        "texttemplate": "%{text}" if len(columns) <= MOST_WRITTEN else "",
        "hovertext": hover,
        "hovertemplate": "%{hovertext}<extra></extra>",
    }
    layout: dict[str, Any] = {
        "uirevision": revision,
        "margin": {"l": 150, "r": 12, "t": 8, "b": 30},
        "xaxis": {"type": "category", "fixedrange": True, "showgrid": False},
        "yaxis": {
            "type": "category",
            "fixedrange": True,
            "autorange": "reversed",
            "showgrid": False,
        },
        "showlegend": False,
    }
    empty = not known.any()
    return {
        "id": name,
        "title": title,
        "alt": f"{title}. " + told_extremes(rows, columns, apart),
        "note": words["empty"] if empty else "",
        "traces": [] if empty else [trace],
        "layout": layout,
        "alone": True,
        "height": 60 + 34 * max(2, len(rows)),
    }


def deviation(values: NDArray[np.float64], among: Among = "row") -> NDArray[np.float64]:
    """Return how far each value is from the median of its row, or of all, as a share of that median
    [rows, columns]; NaN where nothing is known.
    """
    apart = np.full(values.shape, np.nan)
    everywhere = values[np.isfinite(values)]
    for row, line in enumerate(values):
        known = np.isfinite(line)
        if known.any():
            middle = float(np.median(line[known] if among == "row" else everywhere))
            scale = abs(middle) if middle else 1.0
            apart[row, known] = (line[known] - middle) / scale
    return apart


def told_extremes(rows: Sequence[str], columns: Sequence[str], apart: NDArray[np.float64]) -> str:
    """Return, for those who cannot see it, which column is farthest from the others in each row."""
    told = []
    for row, line in zip(rows, apart, strict=True):
        known = np.isfinite(line)
        if known.any():
            at = int(np.nanargmax(np.abs(np.where(known, line, np.nan))))
            told.append(f"{row}: {columns[at]} {100 * line[at]:+.0f}%")
    return ", ".join(told)
