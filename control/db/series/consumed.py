"""How much data a run had taken in by each step, along the lineage of that step's generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import Connection

from control.db.samples import samples
from control.db.samples.chunks import Floats, Ints
from control.db.samples.segments import whole
from control.db.samples.series import Series
from control.snapshot import Attempt


@dataclass(frozen=True, slots=True)
class _Taken:
    """What a generation and those before it on its lineage had taken in, after each of `steps`."""

    steps: Ints
    totals: Floats
    base: float

    def after(self, steps: Ints) -> Floats:
        place = np.searchsorted(self.steps, steps, side="right")
        return np.concatenate([[self.base], self.totals])[place]


class Consumed:
    """Tokens (samples, where a workload counts those) that were taken in up to each step."""

    def __init__(self, taken: dict[int, _Taken]) -> None:
        self._taken = taken

    @classmethod
    def read(cls, connection: Connection, run: str, attempts: Sequence[Attempt]) -> Consumed:
        """Read what each step of every generation of a run took in."""
        generations = [attempt.generation for attempt in attempts]
        found = samples.read(connection, run, "tokens", whole(generations), rank=0)
        taken: dict[int, _Taken] = {}
        for attempt in sorted(attempts, key=lambda each: each.generation):
            parent = taken.get(attempt.parent_generation or 0)
            base = 0.0
            if parent is not None:
                base = float(parent.after(np.array([attempt.resumed_from_step]))[0])
            mine = found.generations == attempt.generation
            weights = np.nan_to_num(found.values[mine], nan=0.0, posinf=0.0, neginf=0.0)
            taken[attempt.generation] = _Taken(found.steps[mine], base + np.cumsum(weights), base)
        return cls(taken)

    def at(self, series: Series) -> list[float]:
        """Return what had been taken in after each point of `series`."""
        totals = np.zeros(len(series))
        for generation, taken in self._taken.items():
            mine = series.generations == generation
            if mine.any():
                totals[mine] = taken.after(series.steps[mine])
        told: list[float] = totals.tolist()
        return told
