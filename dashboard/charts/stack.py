"""Where the time of steps goes, part on part. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from dashboard.charts.arrays import packed_values
from dashboard.charts.axis import Axis, Window
from dashboard.charts.palette import COLORS, PATTERNS
from dashboard.charts.panels import Panel, Words, frame, panel
from dashboard.charts.series import Series


def stack_panel(
    name: str,
    title: str,
    unit: str,
    parts: Sequence[tuple[str, Series]],
    *,
    words: Words,
    axis: Axis,
    extent: Window | None = None,
    revision: str = "",
) -> Panel:
    """Return a panel of `parts`, which are (label, series), as areas that stand on each other."""
    some = [(label, series) for label, series in parts if series.measured.any()]
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": escape(label),
            "x": axis.packed(series),
            "y": packed_values(series.values),
            "hovertemplate": "%{y:.3g}",
            "stackgroup": "parts",
            "stackgaps": "interpolate",
            "line": {"width": 0.5, "color": COLORS[place % len(COLORS)]},
            "fillpattern": {"shape": PATTERNS[place % len(PATTERNS)], "size": 6, "solidity": 0.2},
        }
        for place, (label, series) in enumerate(some)
    ]
    layout = frame(unit, words, (), axis=axis, extent=extent, revision=revision)
    layout["showlegend"] = bool(traces)
    layout["yaxis"] |= {"rangemode": "tozero"}
    alt = f"{title} ({unit}). " + ", ".join(
        f"{label}: {series.newest():.3g}" for label, series in some
    )
    longest = max((series for _, series in some), key=len, default=None)
    return panel(name, title, alt, traces, layout, words, longest)
