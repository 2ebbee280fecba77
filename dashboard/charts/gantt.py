"""A recorded step as bars: what each rank did when, as measured and as planned. Pure.

Micro-batches are told apart by colour and by their number when pointed at, kinds of work by
pattern.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from dashboard.charts.palette import COLORS
from dashboard.charts.panels import Panel
from trainmaster.timeline import EXPOSED

COMPUTE: Mapping[str, str] = {"forward": "", "backward": "/", "input": "/", "weights": "x"}
"""Kinds of work on a micro-batch -> pattern of their bars."""

OTHER: Mapping[str, tuple[frozenset[str], str, str]] = {
    "loss": (frozenset({"loss"}), "#7F8A99", "+"),
    "exposed": (EXPOSED, "rgba(127,138,153,.35)", "-"),
    "optimizer": (frozenset({"optimizer"}), "#5B6573", "x"),
    "data": (frozenset({"data", "checkpoint"}), "#B8BEC8", "."),
}
"""Other work that is drawn -> its kinds, colour and pattern. What stays blank is idle."""

MOST_BARS = 6000
Json = Mapping[str, Any]


def gantt_panel(
    name: str,
    title: str,
    ranks: Sequence[Json],
    *,
    words: Mapping[str, str],
    span_s: tuple[float, float],
    revision: str = "",
) -> Panel:
    """Return a panel with a line for each rank.

    Args:
        ranks: with `rank` and `actions` in columns (kind, stage, number, start_s, end_s).
        words: of the reader's language: each kind, rank, micro_batch, stage, seconds and empty.
        span_s: what the time axis shows.
    """
    traces = [
        trace for kind in (*COMPUTE, *OTHER) if (trace := _bars(kind, ranks, words)) is not None
    ]
    drawn = sum(len(trace["x"]) for trace in traces)
    note = words["empty"] if not drawn else words["too_many"] if drawn > MOST_BARS else ""
    labels = [f"{words['rank']} {each['rank']}" for each in ranks]
    layout = {
        "uirevision": revision,
        "barmode": "overlay",
        "bargap": 0.25,
        "margin": {"l": 58, "r": 12, "t": 8, "b": 36},
        "hovermode": "closest",
        "xaxis": {
            "title": {"text": words["seconds"], "standoff": 4},
            "range": list(span_s),
            "autorange": False,
        },
        "yaxis": {"categoryorder": "array", "categoryarray": labels[::-1], "type": "category"},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "showlegend": True,
    }
    return {
        "id": name,
        "title": title,
        "alt": f"{title}: " + ", ".join(labels),
        "note": note,
        "traces": [] if note else traces,
        "layout": layout,
        "alone": True,
        "height": 90 + 28 * max(3, len(ranks)),
    }


def _bars(kind: str, ranks: Sequence[Json], words: Mapping[str, str]) -> dict[str, Any] | None:
    kinds = {kind} if kind in COMPUTE else OTHER[kind][0]
    starts: list[float] = []
    lengths: list[float] = []
    lines: list[str] = []
    texts: list[str] = []
    colors: list[str] = []
    for rank in ranks:
        actions = rank["actions"]
        for place, each in enumerate(actions["kind"]):
            if each not in kinds:
                continue
            start, end = float(actions["start_s"][place]), float(actions["end_s"][place])
            stage, number = actions["stage"][place], actions["number"][place]
            starts.append(start)
            lengths.append(max(0.0, end - start))
            lines.append(f"{words['rank']} {rank['rank']}")
            named = words[kind] if kind in COMPUTE else f"{words[kind]} ({each})"
            told = [named, f"{(end - start) * 1e3:.3g} ms"]
            if kind in COMPUTE:
                told[1:1] = [f"{words['micro_batch']} {number}", f"{words['stage']} {stage}"]
            texts.append(escape(" · ".join(told)))
            colors.append(COLORS[int(number) % len(COLORS)] if kind in COMPUTE else OTHER[kind][1])
    if not starts:
        return None
    return {
        "type": "bar",
        "orientation": "h",
        "name": words[kind],
        "base": starts,
        "x": lengths,
        "y": lines,
        "text": texts,
        "textposition": "none",
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {
            "color": colors,
            "pattern": {
                "shape": COMPUTE[kind] if kind in COMPUTE else OTHER[kind][2],
                "size": 5,
                "solidity": 0.25,
            },
            "line": {"width": 0.5, "color": "rgba(0,0,0,.35)"},
        },
    }


def span(ranks: Sequence[Json]) -> tuple[float, float]:
    """Return the first start and the last end of all actions, in seconds."""
    starts = [float(each) for rank in ranks for each in rank["actions"]["start_s"]]
    ends = [float(each) for rank in ranks for each in rank["actions"]["end_s"]]
    return (min(starts, default=0.0), max(ends, default=1.0))
