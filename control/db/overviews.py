"""All runs at a glance, for pages that look every two seconds: what cannot have changed since the
last look is not read again.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from sqlalchemy import Connection, func, select

from control.db import queries, shelf, tables
from control.db.accounts import Accounts
from control.db.listings import Json, at
from control.db.samples import samples
from control.db.samples.downsample import thinned
from control.db.samples.segments import surviving
from control.db.sql.faults import UnreadableError
from control.lifecycle import ENDED
from trainmaster.errors import NotFoundError

CURVE_POINTS = 40
GROWS_BY = 0.02
"""A curve is drawn anew when the run is further by this share."""

LOOK_S = 0.25
"""For how long one look computes what is not known yet; the next look goes on."""

MAX_KEPT = 5000

Mark = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Summary:
    mark: Mark
    told: Json


@dataclass(frozen=True, slots=True)
class _More:
    """What takes longer: the loss as a few points, and the share of productive time."""

    generation: int
    step: int
    ended: bool
    told: Json


class Overviews:
    """Remembers what was told of each run, by what would have to change first."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._summaries: OrderedDict[str, _Summary] = OrderedDict()
        self._more: OrderedDict[str, _More] = OrderedDict()

    def listed(
        self,
        connection: Connection,
        *,
        state: str | None = None,
        limit: int | None = None,
        archived: bool | None = None,
    ) -> list[Json]:
        """Return the newest runs, oldest first, without what only their own page shows.

        Args:
            archived: only those in the archive, or only those that are not.
        """
        places = shelf.places(connection)
        marks = _marks(connection, state)
        if archived is not None:
            put = {run for run, place in places.items() if place.archived_at is not None}
            marks = {run: mark for run, mark in marks.items() if (run in put) == archived}
        newest = dict(list(marks.items())[:limit])
        told = self._told(connection, newest)
        return [
            {**told[run], **placed(places.get(run, shelf.Place()))}
            for run in reversed(newest)
            if run in told
        ]

    def _told(self, connection: Connection, marks: Mapping[str, Mark]) -> dict[str, Json]:
        """Return run -> what is told of it, of those marked."""
        changed = [
            run
            for run, mark in marks.items()
            if (kept := self._summaries.get(run)) is None or kept.mark != mark
        ]
        if changed:
            for run, told in queries.listed(connection, changed).items():
                self._summaries[run] = _Summary(marks[run], told)
        found = {run: self._summaries[run].told for run in marks if run in self._summaries}
        for run in found:
            self._summaries.move_to_end(run)
        while len(self._summaries) > MAX_KEPT:
            self._summaries.popitem(last=False)
        return found

    def with_more(
        self, connection: Connection, runs: list[Json], accounts: Accounts, *, now: datetime
    ) -> list[Json]:
        """Return the runs with `loss_curve`, a few (step, loss) of the surviving lineage, and
        `productive_ratio`. What there is no time for in this look is None, and comes in a later
        one; the newest runs come first.
        """
        began = self._monotonic()
        told = []
        for run in reversed(runs):
            known = self._more.get(run["id"])
            is_due = known is None or _has_grown(known, run)
            if is_due and self._monotonic() - began < LOOK_S:
                known = self._look(connection, run, accounts, now)
                self._more[run["id"]] = known
                self._more.move_to_end(run["id"])
            nothing = {"loss_curve": None, "productive_ratio": None}
            told.append({**run, **(nothing if known is None else known.told)})
        while len(self._more) > MAX_KEPT:
            self._more.popitem(last=False)
        return told[::-1]

    def _look(self, connection: Connection, run: Json, accounts: Accounts, now: datetime) -> _More:
        ended = run["state"] in ENDED
        try:
            told = {
                "loss_curve": _curve(connection, run["id"]),
                "productive_ratio": accounts.of(connection, run["id"], now=now).goodput[
                    "productive_ratio"
                ],
            }
        except (*queries.UNREADABLE, UnreadableError, NotFoundError):
            told = {"loss_curve": None, "productive_ratio": None}
        return _More(run["generation"], run["step"], ended, told)


def placed(place: shelf.Place) -> Json:
    """Return where a run is, as the API shows it."""
    return {"tags": list(place.tags), "archived_at": at(place.archived_at)}


def _marks(connection: Connection, state: str | None) -> dict[str, Mark]:
    """Return run -> what changes whenever its summary does, the newest run first."""
    r, a = tables.runs.c, tables.attempts.c
    reached = (
        select(a.run, func.sum(a.last_step).label("steps"), func.max(a.generation).label("newest"))
        .group_by(a.run)
        .subquery()
    )
    query = (
        select(r.id, r.version, r.touched, r.state, reached.c.steps, reached.c.newest)
        .join(reached, reached.c.run == r.id, isouter=True)
        .order_by(r.created_at.desc(), r.id.desc())
    )
    if state is not None:
        query = query.where(r.state == state)
    return {row[0]: tuple(row[1:]) for row in connection.execute(query)}


def _has_grown(known: _More, run: Json) -> bool:
    if known.generation != run["generation"] or known.ended != (run["state"] in ENDED):
        return True
    return not known.ended and run["step"] > known.step * (1 + GROWS_BY)


def _curve(connection: Connection, run: str) -> list[list[Any]]:
    segments = surviving(queries.attempts_of(connection, run))
    found = thinned(samples.read(connection, run, "loss", segments, rank=0), CURVE_POINTS)
    finite = np.isfinite(found.values)
    points = zip(found.steps[finite].tolist(), found.values[finite].tolist(), strict=True)
    return [list(point) for point in points]
