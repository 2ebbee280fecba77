"""What a rule looked at, as lines for a chart."""

from __future__ import annotations

from typing import Any

import numpy as np

from control.db.samples.downsample import thinned
from control.db.samples.series import Series
from control.db.sql.values import number_word
from control.rules.frame import Bools, Floats, Ints
from control.rules.history import History
from trainmaster.rule import Rule

MOST_POINTS = 2000
MOST_LINES = 16


def curve(rule: Rule, history: History) -> dict[str, Any] | None:
    """Return the metric of `rule` in `history`, a line for each member of its scope (the first
    `MOST_LINES`), with at most `MOST_POINTS` points in all; None where it cannot be tried there.
    """
    if history.why_not(rule) is not None or not len(history):
        return None
    frame = history.frame(rule)
    column = frame.column(rule.metric)
    members = frame.members[:MOST_LINES]
    points = max(2, MOST_POINTS // len(members))
    return {
        "metric": rule.metric,
        "lines": [
            {"scope": member, "columns": _columns(frame.steps, values, measured, points)}
            for member, values, measured in zip(
                members, column.values, column.measured, strict=False
            )
        ],
    }


def _columns(steps: Ints, values: Floats, measured: Bools, points: int) -> dict[str, Any]:
    known = np.flatnonzero(measured)
    chosen = thinned(
        Series(np.zeros(len(known), np.int64), steps[known], np.zeros(len(known)), values[known]),
        points,
    )
    return {
        "generation": [0] * len(chosen),
        "step": chosen.steps.tolist(),
        "value": [number_word(each) for each in chosen.values.tolist()],
    }
