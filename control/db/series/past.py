"""A run's stored points as history on which rules are tried: exact, on the surviving lineage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

import numpy as np
from sqlalchemy import Connection, select

from control.db import queries, tables
from control.db.fleet import nodes as fleet
from control.db.samples import chunks, samples
from control.db.samples.segments import Segment, surviving
from control.db.samples.series import Series, together
from control.rules.derived import sources_of
from control.rules.frame import Column, Floats, Ints
from control.rules.history import History, history_of
from control.rules.members import Seat
from control.rules.planned import known_of
from control.rules.trust import trust_of
from control.snapshot import Attempt
from trainmaster.layout import roles
from trainmaster.metrics import BY_NAME, DERIVED
from trainmaster.spec import RunSpec


def history(connection: Connection, run: str, metrics: Iterable[str]) -> History:
    """Return what is stored of `metrics`.

    Raises:
        NotFoundError: there is no such run.
    """
    row = queries.run_row(connection, run)
    attempts = queries.attempts_of(connection, run)
    segments = surviving(attempts)
    wanted = [name for name in sources_of(metrics) if name in BY_NAME or name in DERIVED]
    told = samples.read_many(connection, run, wanted, segments)
    ranks = _of_ranks(connection, run, wanted, segments)
    everything = [*told.values(), *(one for found in ranks.values() for one in found.values())]
    nothing = np.empty(0, dtype=np.int64)
    steps = together([each.steps for each in everything] or [nothing])
    at = np.zeros(len(steps))
    generations = np.zeros(len(steps), dtype=np.int64)
    for each in everything:
        where = np.searchsorted(steps, each.steps)
        at[where] = np.maximum(at[where], each.at)
        generations[where] = each.generations
    seats = _seats(attempts)
    newest = attempts[-1] if attempts else None
    profiles = fleet.profiles(connection, {seat.node for seat in seats if seat.node})
    beside = known_of(newest.plan if newest is not None else None, seats, profiles)
    spec = RunSpec.model_validate(row["spec"])
    trust = trust_of(newest, _trusted(connection, run), spec.checkpoint.trust_after_steps)
    notes = []
    if any(each.rolled_up for each in everything):
        notes.append("Some of it is old and rolled up: points were left out.")
    begins = np.diff(generations, prepend=-1) != 0
    if len(steps) and steps[0] > 1:
        begins[0] = False
    return history_of(
        run,
        steps.tolist(),
        _measured({name: _column([series], steps) for name, series in told.items()}),
        at=at.tolist(),
        begins=begins.tolist(),
        of_ranks=_measured(
            {
                name: _column([found.get(seat.rank) for seat in seats], steps)
                for name, found in ranks.items()
            }
        ),
        seats=seats,
        notes=notes,
        beside=replace(beside, trust=trust),
    )


def _trusted(connection: Connection, run: str) -> list[tuple[datetime, int]]:
    """Return when checkpoints were trusted that stand, or stood until they were retired."""
    c = tables.checkpoints.c
    query = select(c.trusted_at, c.step).where(
        c.run == run,
        c.state.in_(("trusted", "retired")),
        c.trusted_at.is_not(None),
        c.abandoned.is_(False),
    )
    return [(instant, step) for instant, step in connection.execute(query)]


def _of_ranks(
    connection: Connection, run: str, metrics: Sequence[str], segments: Sequence[Segment]
) -> dict[str, dict[int, Series]]:
    """Return what the ranks of the newest generation told: ranks of another plan are others."""
    by_rank = [name for name in metrics if name in BY_NAME and BY_NAME[name].scope == "rank"]
    if not segments or not by_rank:
        return {}
    return samples.read_ranks(connection, run, by_rank, segments[-1])


def _seats(attempts: Sequence[Attempt]) -> tuple[Seat, ...]:
    if not attempts:
        return ()
    return tuple(
        Seat(role.rank, role.replica, role.stage, role.node) for role in roles(attempts[-1].plan)
    )


def _measured(columns: dict[str, Column]) -> dict[str, Column]:
    """Return those of which anything was ever told."""
    return {name: column for name, column in columns.items() if column.measured.any()}


def _column(found: Sequence[Series | None], steps: Ints) -> Column:
    values: Floats = np.zeros((len(found), len(steps)))
    measured = np.zeros((len(found), len(steps)), dtype=bool)
    for place, each in enumerate(found):
        if each is not None:
            where = np.searchsorted(steps, each.steps)
            values[place, where] = each.values
            measured[place, where] = ~np.asarray(chunks.missing(each.values))
    return Column(values, measured)
