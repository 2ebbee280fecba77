"""Which drill concerns whom, when it fires, and what it does to a file."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from trainmaster.checkpoint.manifest import FileEntry, Manifest, seal, sha256
from trainmaster.orders import Drill
from trainmaster.spool import Header, decode
from worker.emulation import Pace
from worker.faults import Faults, concerns, flip_bit, poisons
from worker.launch import Emulation, Inbox
from worker.orders import InboxFile
from worker.reporting.spoolfile import SpoolFile


def drill(**fields: object) -> Drill:
    return Drill.model_validate({"id": 1, "fault": "nan", **fields})


def faults_of(tmp_path: Path, *drills: Drill, rank: int = 0) -> tuple[Faults, Path, Pace]:
    inbox = tmp_path / "inbox.json"
    inbox.write_text(Inbox(drills=list(drills)).model_dump_json())
    pace = Pace(Emulation())
    spool = SpoolFile(tmp_path / "spool", Header("r/1/0"))
    return Faults(InboxFile(inbox), spool, pace, rank=rank, node="here"), tmp_path / "spool", pace


def fired(spool: Path) -> list[object]:
    events = decode(spool.read_bytes(), offset=0, header=None).events
    return [event["data"] for event in events if event["kind"] == "drill_fired"]


@pytest.mark.parametrize(
    ("fields", "ranks"),
    [
        ({"rank": 2}, [2]),
        ({"node": "here"}, [0, 1, 2, 3]),
        ({"node": "there"}, []),
        ({"rank": 1, "node": "there"}, [1]),
        ({}, [0]),
        ({"fault": "corrupt", "rank": 3}, [0]),
    ],
)
def test_a_drill_is_for_its_rank_or_all_of_its_node_or_rank_0(
    fields: dict[str, object], ranks: list[int]
) -> None:
    assert [rank for rank in range(4) if concerns(drill(**fields), rank, "here")] == ranks


def test_a_numeric_drill_lasts_its_steps_and_later_only_its_batches() -> None:
    fresh, carried = drill(steps=2), drill(steps=2, batches=[[10, 11], [20, 20]])
    assert [step for step in range(1, 9) if poisons(fresh, 4, step, batch=step)] == [4, 5]
    assert [b for b in range(1, 30) if poisons(carried, 4, 1, batch=b)] == [10, 11, 20]


def test_a_drill_without_a_step_begins_with_the_next_one(tmp_path: Path) -> None:
    faults, spool, _ = faults_of(tmp_path, drill(steps=2))
    factors = [faults.before_step(step, batch=step + 5) for step in (7, 8, 9)]
    assert [math.isnan(factor) for factor in factors] == [True, True, False]
    assert fired(spool) == [
        {"id": 1, "fault": "nan", "step": 7, "batch": 12},
        {"id": 1, "fault": "nan", "step": 8, "batch": 13},
    ]


def test_slowness_begins_once_and_lasts_its_time(tmp_path: Path) -> None:
    faults, spool, pace = faults_of(tmp_path, drill(fault="slow", at_step=2, duration_s=5.0))
    assert faults.before_step(1, 1) == 1.0
    assert pace.slow_until == 0.0
    faults.before_step(2, 2)
    until = pace.slow_until
    assert until > 0
    faults.before_step(3, 3)
    assert pace.slow_until == until
    assert len(fired(spool)) == 1
    assert pace.takes_s("forward", 1, 0.1, now=until - 1) == pytest.approx(0.3)
    assert pace.takes_s("forward", 1, 0.1, now=until) == 0.1


def committed(folder: Path, **files: bytes) -> Manifest:
    entries = {}
    for name, data in files.items():
        (folder / name).write_bytes(data)
        digest = sha256(data)
        entries[name] = FileEntry(bytes=len(data), sha256=digest, blocks=[digest])
    return seal(run="r", generation=1, step=1, layout={}, parent=None, files=entries, tensors={})


def test_corruption_flips_one_bit_of_the_largest_file(tmp_path: Path) -> None:
    manifest = committed(tmp_path, small=b"abc", large=b"abcdefgh")
    assert flip_bit(tmp_path.as_uri(), manifest) == "large"
    assert (tmp_path / "small").read_bytes() == b"abc"
    damaged = (tmp_path / "large").read_bytes()
    assert damaged == b"abcd" + bytes([ord("e") ^ 1]) + b"fgh"
