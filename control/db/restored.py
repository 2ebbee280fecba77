"""What a database must know when it has been set back to a back-up.

Nodes may have seen generations that it does not know any more, and checkpoints of theirs may lie in
the store. No number of a generation may be given out twice, so each run goes on far above; and what
nodes still tell of such generations is said to people, once.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import Connection, select, update

from control.db import history, tables

LEAP = 1000
"""How many generations a run may have begun since the back-up."""

UNKNOWN = "generation_unknown"


def note(connection: Connection, source: str, *, now: datetime) -> int:
    """Have each run go on above all generations that it may have had; return the number of runs."""
    # Restoring the same back-up again must not lead to the same numbers.
    leap = LEAP + int(now.timestamp()) % LEAP
    r = tables.runs.c
    found = connection.execute(select(r.id, r.generation).order_by(r.id)).all()
    connection.execute(update(tables.runs).values(generation_floor=r.generation + leap))
    connection.execute(
        update(tables.runs)
        .where(r.ended_at.is_(None))
        .values(touched=r.touched + 1, next_look_at=now)
    )
    for run, generation in found:
        history.record(
            connection,
            at=now,
            kind="database_restored",
            actor="control",
            because=f"The database was restored from {source}. The generation after {generation} "
            f"gets the number {generation + leap}, so that none is given out twice.",
            run=run,
            generation=generation or None,
            data={"source": source, "floor": generation + leap},
        )
    history.audit(
        connection,
        at=now,
        actor="control",
        action="database_restored",
        target="database",
        data={"source": source, "runs": len(found)},
    )
    return len(found)


def note_unknown(
    connection: Connection, spoken_of: Collection[tuple[str, str, int]], *, now: datetime
) -> None:
    """Tell people, once, of generations that nodes know and the database does not; and number the
    next generation above them.

    Args:
        spoken_of: (node, run, generation) of what was not given to the node.
    """
    if not spoken_of:
        return
    r = tables.runs.c
    query = select(r.id, r.generation, r.generation_floor).where(
        r.id.in_(sorted({run for _, run, _ in spoken_of}))
    )
    known = {row.id: row for row in connection.execute(query)}
    for node, run, generation in sorted(spoken_of):
        row = known.get(run)
        # What is out of all measure is no generation that ever was.
        if row is None or not row.generation < generation < row.generation + 10 * LEAP:
            continue
        if _was_told(connection, run, generation):
            continue
        history.touch_all(connection, [run], now)
        connection.execute(
            update(tables.runs)
            .where(r.id == run, r.generation_floor <= generation)
            .values(generation_floor=generation + 1)
        )
        history.record(
            connection,
            at=now,
            kind=UNKNOWN,
            actor=f"agent {node}",
            because=f"{node} tells of generation {generation}, which this database does not know: "
            "it was restored from a back-up. What still runs of it is stopped, and what it told is "
            "not stored; its checkpoints lie in the store. The next generation is numbered above.",
            run=run,
            generation=generation,
            data={"node": node},
        )


def _was_told(connection: Connection, run: str, generation: int) -> bool:
    e = tables.events.c
    query = select(e.id).where(e.run == run, e.kind == UNKNOWN, e.generation == generation).limit(1)
    return connection.scalar(query) is not None
