"""What is told of a generation's ranks."""

from __future__ import annotations

from control.db import queries
from control.db.engine import Database
from tests.integration.control.conftest import FakeClock
from tests.integration.control.scene import Scene, plan


def test_ranks_that_share_a_place_are_told_apart_by_their_part(
    db: Database, clock: FakeClock
) -> None:
    scene = Scene(db, clock)
    scene.sync()
    run = scene.submit()
    scene.begin(slots=(0, 1, 2, 3), under=plan().model_copy(update={"tensor": 2}))
    with scene.db.read() as connection:
        told = queries.ranks_of(connection, run, 1)
    assert [(each["stage"], each["tensor"]) for each in told] == [(0, 0), (0, 1), (1, 0), (1, 1)]
