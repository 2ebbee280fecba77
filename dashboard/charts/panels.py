"""Panels of the run page: traces and layout of one chart each, as plain dictionaries.

Colours of text, grid and ground are left to the browser, which knows the theme.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from dashboard.charts.arrays import packed_integers, packed_values
from dashboard.charts.axis import Axis, Window
from dashboard.charts.marks import Mark
from dashboard.charts.palette import ABANDONED, BAD, MARK, SURVIVING, rank_line
from dashboard.charts.series import Series, smoothed, surviving, with_breaks

Panel = dict[str, Any]
Words = Mapping[str, str]
"""What a panel says in the reader's language: surviving, abandoned, non_finite, step, time, tokens,
elapsed, generation, rank, empty, median and smoothed."""

STEPS = Axis()

MOST_LINES = 16
"""With more ranks than this, their extremes and their median are drawn instead of each."""


def run_panel(
    name: str,
    title: str,
    unit: str,
    series: Series,
    survivors: Mapping[int, int],
    *,
    words: Words,
    marks: Sequence[Mark] = (),
    axis: Axis = STEPS,
    extent: Window | None = None,
    log: bool = False,
    keep: float = 0.0,
    revision: str = "",
) -> Panel:
    """Return a panel of one run-level metric: the surviving lineage in colour, others grey.

    Args:
        extent: first and last step that are shown without a zoom, so that panels stand in line.
        keep: above 0, the lineage is smoothed (`dashboard.charts.series.smoothed`), with what was
            measured faintly behind it.
    """
    alive = surviving(series, survivors)
    traces = [line(series.where(alive), words["surviving"], words, axis)]
    if keep:
        traces[0] |= {"opacity": 0.3, "hoverinfo": "skip", "hovertemplate": None}
        traces.append(line(smoothed(series.where(alive), keep), words["smoothed"], words, axis))
    if not alive.all():
        # On top: steps that were redone exactly would hide it.
        traces.append(line(series.where(~alive), words["abandoned"], words, axis, dead=True))
    bad = series.where(series.non_finite)
    if len(bad):
        traces.append(_non_finite(bad, words, axis))
    if marks:
        traces.append(_marks(marks, axis))
    layout = frame(unit, words, marks, axis=axis, extent=extent, log=log, revision=revision)
    layout["showlegend"] = not alive.all() or bool(keep)
    return panel(name, title, _alt(title, unit, series.where(alive)), traces, layout, words, series)


def rank_panel(
    name: str,
    title: str,
    unit: str,
    by_rank: Mapping[int, Series],
    *,
    words: Words,
    marks: Sequence[Mark] = (),
    axis: Axis = STEPS,
    extent: Window | None = None,
    ratio: bool = False,
    revision: str = "",
) -> Panel:
    """Return a panel with a line for each rank, or with their extremes when there are many."""
    some = {rank: series for rank, series in sorted(by_rank.items()) if len(series)}
    if len(some) > MOST_LINES:
        traces = _spread(some, words, axis)
    else:
        traces = [_rank_line(rank, series, words, axis) for rank, series in some.items()]
    layout = frame(unit, words, marks, axis=axis, extent=extent, revision=revision)
    layout["showlegend"] = bool(traces)
    if ratio:
        layout["yaxis"] |= {"tickformat": ".0%", "range": [0, 1.02], "autorange": False}
    newest = _newest_by_rank(some)
    alt = f"{title} ({unit}). " + ", ".join(
        f"{words['rank']} {rank}: {value:.4g}" for rank, value in newest.items()
    )
    longest = max(some.values(), key=len, default=None)
    return panel(name, title, alt, traces, layout, words, longest)


def overlay_panel(
    name: str,
    title: str,
    unit: str,
    lines: Sequence[tuple[str, Series]],
    *,
    words: Words,
    marks: Sequence[Mark] = (),
    axis: Axis = STEPS,
    extent: Window | None = None,
    log: bool = False,
    revision: str = "",
) -> Panel:
    """Return a panel with one line for each of `lines`, which are (name, series)."""
    some = [(label, series) for label, series in lines if series.measured.any()]
    traces = [_named_line(label, place, series, axis) for place, (label, series) in enumerate(some)]
    traces += [
        _non_finite(series.where(series.non_finite), words, axis)
        for _, series in some
        if series.non_finite.any()
    ]
    if marks:
        traces.append(_marks(marks, axis))
    layout = frame(unit, words, marks, axis=axis, extent=extent, log=log, revision=revision)
    layout["showlegend"] = bool(traces)
    alt = f"{title} ({unit}). " + ", ".join(
        f"{label}: {series.newest():.4g}" for label, series in some
    )
    longest = max((series for _, series in some), key=len, default=None)
    return panel(name, title, alt, traces, layout, words, longest)


def panel(
    name: str,
    title: str,
    alt: str,
    traces: list[dict[str, Any]],
    layout: dict[str, Any],
    words: Words,
    series: Series | None,
) -> Panel:
    """Return a panel as the browser draws it; one without a measured value says so instead."""
    empty = series is None or not series.measured.any()
    return {
        "id": name,
        "title": title,
        "alt": alt,
        "note": words["empty"] if empty else "",
        "traces": [] if empty else traces,
        "layout": layout,
    }


def waiting_panel(name: str, title: str) -> Panel:
    """Return the place of a panel whose values are still to come."""
    nothing: Panel = {"id": name, "title": title, "alt": title, "note": "", "waits": True}
    return {**nothing, "traces": [], "layout": {}}


def line(
    series: Series, name: str, words: Words, axis: Axis, *, dead: bool = False
) -> dict[str, Any]:
    """Return a line of the run as a whole; `dead` is what a rollback left behind."""
    broken = with_breaks(series)
    isolated = len(series) == 1
    generations = np.unique(broken.generations)
    several = len(generations) > 1
    only = "" if several or not len(generations) else str(generations[0])
    return {
        "type": "scatter",
        "mode": "markers" if isolated else "lines",
        "name": name,
        "x": axis.packed(broken),
        "y": packed_values(broken.values),
        **({"customdata": packed_integers(broken.generations)} if several else {}),
        "hovertemplate": f"%{{y:.5g}} · {escape(words['generation'])} {only or '%{customdata}'}",
        "connectgaps": False,
        "line": {
            "color": ABANDONED if dead else SURVIVING,
            "width": 2.0 if dead else 1.8,
            "dash": "dash" if dead else "solid",
        },
        "marker": {"color": ABANDONED if dead else SURVIVING, "size": 6},
    }


def _non_finite(series: Series, words: Words, axis: Axis) -> dict[str, Any]:
    said = ["NaN" if np.isnan(value) else f"{value:+.0f}".upper() for value in series.values]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": words["non_finite"],
        "x": axis.packed(series),
        "y": [0.03] * len(series),
        "yaxis": "y2",
        "text": [
            f"{value} · {escape(words['generation'])} {generation}"
            for value, generation in zip(said, series.generations, strict=True)
        ],
        "hovertemplate": "%{text}",
        "marker": {"symbol": "x", "size": 8, "color": BAD},
        "showlegend": False,
    }


def _marks(marks: Sequence[Mark], axis: Axis) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "",
        "x": [axis.place(mark.step, mark.generation) for mark in marks],
        "y": [0.97] * len(marks),
        "yaxis": "y2",
        "text": [escape(_short(mark.text)) for mark in marks],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {
            "symbol": [mark.symbol for mark in marks],
            "size": 9,
            "color": [BAD if mark.kind == "alert" else MARK for mark in marks],
        },
        "showlegend": False,
    }


def _rank_line(rank: int, series: Series, words: Words, axis: Axis) -> dict[str, Any]:
    return _named_line(f"{words['rank']} {rank}", rank, series, axis)


def _named_line(name: str, place: int, series: Series, axis: Axis) -> dict[str, Any]:
    broken = with_breaks(series)
    return {
        "type": "scatter",
        "mode": "lines" if len(series) > 1 else "markers",
        "name": escape(_short(name)),
        "x": axis.packed(broken),
        "y": packed_values(broken.values),
        "hovertemplate": "%{y:.4g}",
        "connectgaps": False,
        "line": rank_line(place),
    }


def _spread(by_rank: Mapping[int, Series], words: Words, axis: Axis) -> list[dict[str, Any]]:
    steps = np.unique(np.concatenate([series.steps for series in by_rank.values()]))
    table = np.full((len(by_rank), len(steps)), np.nan)
    for row, series in enumerate(by_rank.values()):
        finite = np.isfinite(series.values)
        table[row, np.searchsorted(steps, series.steps[finite])] = series.values[finite]
    known = ~np.isnan(table).all(axis=0)
    steps, table = steps[known], table[:, known]
    rows = {
        "max": np.nanmax(table, axis=0),
        words["median"]: np.nanmedian(table, axis=0),
        "min": np.nanmin(table, axis=0),
    }
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": axis.packed_at(steps),
            "y": packed_values(values),
            "hovertemplate": "%{y:.4g}",
            "line": rank_line(index),
        }
        for index, (name, values) in enumerate(rows.items())
    ]


def frame(
    unit: str,
    words: Words,
    marks: Sequence[Mark],
    *,
    axis: Axis,
    extent: Window | None,
    log: bool = False,
    revision: str,
) -> dict[str, Any]:
    """Return the layout that panels of a run share."""
    xaxis = axis.layout(words)
    reach = axis.extent(extent)
    if reach is not None:
        first, last = reach
        xaxis["autorangeoptions"] = {"include": [first, last], "clipmin": first, "clipmax": last}
    return {
        "uirevision": revision,
        "margin": {"l": 58, "r": 12, "t": 8, "b": 36},
        "hovermode": "x unified",
        "xaxis": xaxis,
        "yaxis": {"title": {"text": unit, "standoff": 4}, "type": "log" if log else "linear"},
        "yaxis2": {"overlaying": "y", "range": [0, 1], "fixedrange": True, "visible": False},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "shapes": [
            {
                "type": "line",
                "xref": "x",
                "yref": "paper",
                "x0": (place := axis.place(mark.step, mark.generation)),
                "x1": place,
                "y0": 0,
                "y1": 1,
                "line": {"color": MARK, "width": 1, "dash": "dash"},
            }
            for mark in marks
            if mark.line
        ],
    }


def _newest_by_rank(by_rank: Mapping[int, Series]) -> dict[int, float]:
    newest = {}
    for rank, series in list(by_rank.items())[:MOST_LINES]:
        finite = series.values[np.isfinite(series.values)]
        if len(finite):
            newest[rank] = float(finite[-1])
    return newest


def _alt(title: str, unit: str, series: Series) -> str:
    finite = np.flatnonzero(np.isfinite(series.values))
    if not len(finite):
        return f"{title} ({unit})"
    first, last = finite[0], finite[-1]
    return (
        f"{title} ({unit}): {series.values[first]:.4g} @ {series.steps[first]} → "
        f"{series.values[last]:.4g} @ {series.steps[last]}"
    )


def _short(text: str, most: int = 90) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
