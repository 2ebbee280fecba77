"""A predicted step as rows of letters: one for each stage, a column for an equal slice of time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WIDTH = 72
IDLE = "."


def chart(gantt: Mapping[str, Any], step_s: float, *, width: int = WIDTH) -> list[str]:
    """Return the lines of a chart.

    Args:
        gantt: as the planner tells it: bars `{pipeline stage kind micro_batch start_s end_s}`.
        step_s: what the chart is as wide as; what lies behind the last bar are sums of gradients.
    """
    rows: dict[tuple[int, int], list[dict[str, float]]] = {}
    for bar in gantt["bars"]:
        slices = rows.setdefault((bar["pipeline"], bar["stage"]), [{} for _ in range(width)])
        first = max(0, int(bar["start_s"] / step_s * width))
        last = min(width - 1, int(bar["end_s"] / step_s * width))
        for column in range(first, last + 1):
            begins, ends = column * step_s / width, (column + 1) * step_s / width
            busy_s = min(ends, bar["end_s"]) - max(begins, bar["start_s"])
            letter = str(bar["kind"])
            slices[column][letter] = slices[column].get(letter, 0.0) + max(0.0, busy_s)
    lines = []
    for (pipeline, stage), slices in sorted(rows.items()):
        letters = "".join(_letter(each, step_s / width) for each in slices)
        lines.append(f"{pipeline:>3} {stage:>3}  {letters}")
    if not lines:
        return ["The step has too many actions to be drawn."]
    legend = f"pipeline and stage; F forward, B backward, {IDLE} waiting; a column is "
    lines.append(f"{legend}{step_s / width:.3g} s")
    if not gantt.get("complete", True):
        lines.append("Pipelines with too many actions are left out.")
    return lines


def _letter(busy_s: Mapping[str, float], slice_s: float) -> str:
    idle_s = slice_s - sum(busy_s.values())
    letter, most_s = max(busy_s.items(), key=lambda each: each[1], default=(IDLE, 0.0))
    return letter if most_s > 0 and most_s >= idle_s else IDLE
