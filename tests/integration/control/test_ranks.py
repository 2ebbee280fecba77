"""What is told of a generation's ranks."""

from __future__ import annotations

from control.db import queries
from control.db.fleet import kinds
from control.db.sql.engine import Database
from tests.integration.control.conftest import FakeClock
from tests.integration.control.scene import Scene, columns, plan
from trainmaster.wire import Device


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


def test_speed_and_health_are_told_by_kind_of_device(db: Database, clock: FakeClock) -> None:
    scene = Scene(db, clock)
    devices = [
        Device(kind=kind, name="emulated", memory_bytes=1 << 30) for kind in ("emu-b", "emu-a")
    ]
    scene.sync(devices=devices)
    run = scene.submit()
    scene.begin(slots=(0, 1, 2, 3), under=plan(replicas=2))
    for rank in range(4):
        slow = rank % 2 == 0  # slots go round the devices: those of emu-b
        values = {
            "step_time_s": [0.5, 0.5],
            "compute_s": [0.4, 0.4] if slow else [0.1, 0.2],
            "memory_used_ratio": [0.5, 0.25 * (rank + 1)],
        }
        scene.sync(
            scene.batch(0, 90, rank=rank, samples=columns([1, 2], **values)), devices=devices
        )
    with scene.db.read() as connection:
        fast, slow = kinds.kinds_of(connection, run, 1, now=clock.now())
    assert (fast["kind"], slow["kind"]) == ("emu-a", "emu-b")
    assert (fast["ranks"], fast["nodes"], fast["silent_nodes"]) == (2, ["n1"], [])
    assert fast["compute_s"] == 0.15000000000000002
    assert slow["compute_s"] == 0.4
    assert (fast["memory_used_ratio"], slow["memory_used_ratio"]) == (1.0, 0.75)
    assert fast["utilization_ratio"] is None, "it was not measured"
    clock.pass_s(3600)
    with scene.db.read() as connection:
        told = kinds.kinds_of(connection, run, 1, now=clock.now())
    assert [each["silent_nodes"] for each in told] == [["n1"], ["n1"]]
