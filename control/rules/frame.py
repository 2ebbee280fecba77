"""Some steps of what a rule looks at, as columns: one row per member (the run, a rank, a node...).

Whether a value was measured is kept beside it, since NaN is a value: the one that matters most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Column:
    """The values of one metric: `values` and `measured`, each (members, steps)."""

    values: Floats
    measured: Bools

    @cached_property
    def finite(self) -> Bools:
        """Where a value was measured and is finite."""
        return self.measured & np.isfinite(self.values)

    @cached_property
    def sick(self) -> Bools:
        """Where a value was measured and is not finite."""
        return self.measured & ~np.isfinite(self.values)

    def without(self, exempt: Bools) -> Column:
        """Return the column as if finite values at the `exempt` steps had not been measured."""
        return Column(self.values, self.measured & ~(exempt & self.finite))

    @staticmethod
    def absent(members: int, steps: int) -> Column:
        """Return a column of which nothing was measured."""
        return Column(np.zeros((members, steps)), np.zeros((members, steps), dtype=bool))


@dataclass(frozen=True)
class Frame:
    """Steps in ascending order, not one of them seen before.

    Attributes:
        members: the scope of each row: "run", or "rank 0", "rank 1", ...
        steps, at: (steps); when each step ended, in seconds since the epoch.
        begins: (steps); whether an attempt began with this step.
        columns: metric -> its values by member.
        ranks: metric -> its values by rank, for conditions that compare replicas.
        peers: for each member the number of the stage it holds: members of one stage are peers.
        replicas: for each rank of `ranks` the number of its replica.
        parts: for each member the places of those that it stands for; empty where it is plain.
    """

    members: tuple[str, ...]
    steps: Ints
    at: Floats
    begins: Bools
    columns: Mapping[str, Column]
    ranks: Mapping[str, Column] = field(default_factory=dict)
    peers: tuple[int, ...] = ()
    replicas: tuple[int, ...] = ()
    parts: tuple[tuple[int, ...], ...] = ()

    def __len__(self) -> int:
        return len(self.steps)

    def column(self, metric: str) -> Column:
        """Return the values of a metric, not measured where the frame has none."""
        return self.columns.get(metric) or Column.absent(len(self.members), len(self))


def column_of(values: Sequence[float | None]) -> Column:
    """Return one member's values."""
    measured = np.array([value is not None for value in values], dtype=bool)
    numbers = np.array([0.0 if value is None else value for value in values], dtype=np.float64)
    return Column(numbers[None, :], measured[None, :])
