"""How far the newest trusted checkpoint lies behind a step. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from control.rules.frame import Bools, Floats, Ints
from control.snapshot import Attempt


@dataclass(frozen=True, slots=True)
class Trust:
    """What checkpoints of a run were trusted, and since when.

    Attributes:
        since_step: where the newest attempt began, from which is counted before any is trusted.
        within_steps: how many steps a trusted one is behind at most where all goes well: those
            between two checkpoints, and those that must follow one.
        trusted: (instant, in seconds since the epoch; step), ascending.
    """

    since_step: int
    within_steps: int
    trusted: tuple[tuple[float, int], ...] = ()

    def lag_ratios(self, steps: Ints, at: Floats) -> tuple[Floats, Bools]:
        """Return the steps since the newest trusted checkpoint over `within_steps`, and where that
        is known: what was trusted before the oldest that is still kept is not.

        Args:
            at: when each step ended, in seconds since the epoch.
        """
        if not self.trusted:
            behind = steps - self.since_step
            return np.maximum(behind, 0) / self.within_steps, behind > 0
        instants = np.array([instant for instant, _ in self.trusted])
        newest = np.maximum.accumulate(np.array([step for _, step in self.trusted]))
        place = np.searchsorted(instants, at, side="right")
        behind = steps - newest[np.maximum(place - 1, 0)]
        return np.maximum(behind, 0) / self.within_steps, place > 0


def trust_of(
    attempt: Attempt | None, trusted: Iterable[tuple[datetime, int]], trust_after_steps: int
) -> Trust | None:
    """Return what is known of a run's trusted checkpoints; None before its first attempt.

    Args:
        attempt: the newest.
        trusted: when each was trusted, and its step.
    """
    if attempt is None or attempt.checkpoint_every is None:
        return None
    within = attempt.checkpoint_every + trust_after_steps
    marks = sorted((instant.timestamp(), step) for instant, step in trusted)
    return Trust(attempt.resumed_from_step, within, tuple(marks))
