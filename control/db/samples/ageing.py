"""How old samples may grow before they are rolled up or go. Pure.

Ages count from the end of the run: what lives, or is paused, is never touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Self

MOST_POINTS = 10_000
"""Points that are kept of a series that is rolled up."""


class Stage(IntEnum):
    """How far the samples of a generation have been rolled up, as `sample_ageing` says it."""

    SHORT = 1
    """No series has more points than would be kept: all are still there."""
    REDUCED = 2
    """The values over ranks are stored, and those of ranks are being rolled up or removed."""
    ROLLED_UP = 3
    """The series of ranks are rolled up."""
    REMOVED = 4
    """The series of ranks are gone, and those of the run are rolled up."""


@dataclass(frozen=True, slots=True)
class Ages:
    """When samples change.

    Attributes:
        exact: for how long after its end all samples of a run stay; None for ever.
        kept: for how long after its end the series of its ranks stay; None for ever.
    """

    exact: timedelta | None
    kept: timedelta | None

    @classmethod
    def of_days(cls, exact: int, kept: int) -> Self:
        """Return the ages that the settings say, where 0 is for ever."""
        return cls(timedelta(days=exact) if exact else None, timedelta(days=kept) if kept else None)

    def ended_before(self, now: datetime) -> dict[Stage, datetime]:
        """Return the stages that there are to reach, the last one first, each with the instant
        before which a run must have ended.
        """
        ages = {Stage.REMOVED: self.kept, Stage.ROLLED_UP: self.exact}
        return {stage: now - age for stage, age in ages.items() if age is not None}
