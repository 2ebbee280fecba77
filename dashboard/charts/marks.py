"""Marks on the step axis: where generations began, and what happened when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_SYMBOLS = {
    "generation": "triangle-down",
    "alert": "diamond",
    "checkpoint": "square",
}
_FIRED = frozenset({"firing", "resolved"})
MOST_MARKS = 60


@dataclass(frozen=True, slots=True)
class Mark:
    """Something at a step. `text` is shown when pointed at; `line` asks for a vertical line.

    `generation` tells which of several times the step was taken, where that is known.
    """

    step: int
    kind: str
    text: str
    line: bool = False
    generation: int | None = None

    @property
    def symbol(self) -> str:
        """The Plotly symbol of its kind."""
        return _SYMBOLS.get(self.kind, "circle")


def generation_marks(attempts: Sequence[Mapping[str, Any]], label: str) -> list[Mark]:
    """Return one mark for each generation but the first, where it took over.

    `label` is a pattern with {generation} and {cause}.
    """
    ordered = sorted(attempts, key=lambda attempt: int(attempt["generation"]))
    return [
        Mark(
            int(attempt.get("resumed_from_step") or 0) + 1,
            "generation",
            label.format(generation=attempt["generation"], cause=attempt.get("cause") or ""),
            line=True,
            generation=int(attempt["generation"]),
        )
        for attempt in ordered[1:]
    ][-MOST_MARKS:]


def alert_marks(alerts: Sequence[Mapping[str, Any]]) -> list[Mark]:
    """Return one mark for each alert that has fired and knows its first bad step."""
    return [
        Mark(int(alert["first_bad_step"]), "alert", str(alert.get("rule") or ""))
        for alert in alerts
        if alert.get("first_bad_step") is not None and alert.get("state") in _FIRED
    ][-MOST_MARKS:]
