"""Names of columns: `loss` is the run's, `loss@rank=3` that of rank 3, `compute_s@rank=3@stage=1`
says besides which stage it holds. `@replica=` and `@node=` go the same way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from control.rules.frame import Column
from control.rules.members import Seat
from trainmaster.errors import Problem, SpecError

_NAME = re.compile(r"(?P<metric>[^@]+)(?P<tags>(?:@[a-z]+=[^@]+)*)")
_TAGS = {"rank", "stage", "replica", "node"}


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns sorted by what they are of."""

    of_run: dict[str, Column]
    of_ranks: dict[str, Column]
    seats: tuple[Seat, ...]


def split(name: str) -> tuple[str, Seat | None]:
    """Return the metric that a column's name tells, and whose it is: None for the run's.

    Raises:
        SpecError: it cannot be read.
    """
    match = _NAME.fullmatch(name.strip())
    if match is None:
        raise SpecError([Problem(name, "is no name of a column: metric, or metric@rank=3")])
    tags = dict(tag.split("=", 1) for tag in match["tags"].split("@")[1:])
    if not tags:
        return match["metric"], None
    unknown = sorted(tags.keys() - _TAGS)
    if unknown or "rank" not in tags:
        raise SpecError(
            [Problem(name, f"needs @rank=, and may have @stage=, @replica=, @node=, not {unknown}")]
        )
    try:
        rank = int(tags["rank"])
        seat = Seat(
            rank,
            int(tags.get("replica", rank)),
            int(tags.get("stage", 0)),
            tags.get("node"),
        )
    except ValueError as error:
        raise SpecError([Problem(name, "rank, stage and replica are numbers")]) from error
    return match["metric"], seat


def columns_of(named: Mapping[str, Column]) -> Columns:
    """Return columns by what they are of.

    Raises:
        SpecError: a name cannot be read, or says otherwise of a rank than another one.
    """
    of_run: dict[str, Column] = {}
    by_rank: dict[str, dict[int, Column]] = {}
    seats: dict[int, Seat] = {}
    for name, column in named.items():
        metric, seat = split(name)
        if seat is None:
            of_run[metric] = column
            continue
        if seats.setdefault(seat.rank, seat) != seat:
            raise SpecError([Problem(name, f"says otherwise of rank {seat.rank} than another")])
        if by_rank.setdefault(metric, {}).setdefault(seat.rank, column) is not column:
            raise SpecError([Problem(name, f"is rank {seat.rank} once more")])
    ranks = sorted(seats)
    of_ranks = {}
    for metric, found in by_rank.items():
        steps = next(iter(found.values())).values.shape[1]
        rows = [found.get(rank) or Column.absent(1, steps) for rank in ranks]
        of_ranks[metric] = Column(
            np.concatenate([row.values for row in rows]),
            np.concatenate([row.measured for row in rows]),
        )
    return Columns(of_run, of_ranks, tuple(seats[rank] for rank in ranks))
