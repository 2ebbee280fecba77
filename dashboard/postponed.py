"""What is sent only after a few seconds in which it can be undone. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from dashboard.data import Json

UNDO_S = 5.0
LEFT_AFTER_S = 15.0
TOLD_FOR_S = 120.0

Standing = Literal["waits", "due", "left", "past"]


@dataclass(frozen=True, slots=True)
class Postponed:
    """A stop that was pressed. The page sends it; one that nobody looks at sends nothing.

    Attributes:
        seen: the run as it was when it was pressed.
    """

    args: Json
    why: str
    seen: Json
    pressed_at: datetime

    def left_s(self, now: datetime) -> float:
        """Return for how many seconds it can still be undone."""
        return max(0.0, UNDO_S - (now - self.pressed_at).total_seconds())

    def standing(self, now: datetime) -> Standing:
        """Return what is to become of it: it waits, it is due, or it was left alone for so long
        that the person cannot mean it any more, which is told for a while.
        """
        age_s = (now - self.pressed_at).total_seconds()
        if age_s < UNDO_S:
            return "waits"
        if age_s < LEFT_AFTER_S:
            return "due"
        return "left" if age_s < TOLD_FOR_S else "past"
