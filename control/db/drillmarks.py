"""Which alerts and incidents are put down to drills: nobody should take an exercise for trouble."""

from __future__ import annotations

from collections.abc import Callable, Collection

from sqlalchemy import Connection, select

from control import drills
from control.db import tables
from control.snapshot import DrillStatus
from trainmaster.orders import Drill

Mark = Callable[[str, Collection[int] | None, int | None], str | None]
"""(run, generations or None for any, step) -> the drill's fault, None where none is behind."""


def marks(connection: Connection, run: str | None = None) -> Mark:
    """Return what tells whether something was a drill's doing, in one run or in all."""
    c = tables.drills.c
    query = select(c.run, c.drill, c.generation, c.fired)
    if run is not None:
        query = query.where(c.run == run)
    by_run: dict[str, list[DrillStatus]] = {}
    for name, drill, generation, fired in connection.execute(query):
        told = tuple((of, step, batch) for of, step, batch in fired)
        by_run.setdefault(name, []).append(
            DrillStatus(Drill.model_validate(drill), generation, told)
        )

    def mark(name: str, generations: Collection[int] | None, step: int | None) -> str | None:
        found = by_run.get(name, ())
        if not found or step is None:
            return None
        if generations is None:
            generations = {of for each in found for of, _, _ in each.fired}
        behind = (drills.behind(found, each, step) for each in sorted(generations))
        return next((each.fault for each in behind if each is not None), None)

    return mark
