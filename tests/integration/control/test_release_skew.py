"""An agent of the release before this one speaks to today's control plane: what it really said,
recorded (tests/data/wire), is stored value by value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from control.db.sql.engine import Database
from tests.integration.control.api import Plane, plane
from tests.integration.control.conftest import FakeClock
from tests.integration.control.scene import Scene
from trainmaster.home import Home
from trainmaster.ids import parse_rank_stream

RECORDED = Path(__file__).parents[2] / "data" / "wire" / "release-0.1.0.json"


@pytest.fixture
def here(db: Database, tmp_path: Path, clock: FakeClock) -> Iterator[Plane]:
    with plane(db, Home(tmp_path / "home"), clock) as made:
        yield made


def said_of(run: str) -> list[dict[str, Any]]:
    """What the old agent said, as if about this run."""
    text = RECORDED.read_text(encoding="utf-8")
    recorded = json.loads(text)[-1]["said"]["running"][0]["run"]
    return [each["said"] for each in json.loads(text.replace(recorded, run))]


def _told(messages: list[dict[str, Any]], run: str, metric: str, rank: int) -> list[Any]:
    """The points of one rank as the old agent wrote them: [step, value]."""
    points = []
    for batch in (batch for message in messages for batch in message["batches"]):
        if batch["stream"] == f"{run}/1/{rank}" and batch["samples"]:
            columns = batch["samples"]
            points += zip(columns["steps"], columns["values"][metric], strict=True)
    return [list(point) for point in points]


def _metrics(messages: list[dict[str, Any]]) -> list[str]:
    """What the old agent measured: today's may measure more."""
    told = [batch["samples"] for message in messages for batch in message["batches"]]
    return list(next(samples for samples in told if samples)["values"])


def test_what_the_release_before_says_is_stored_value_by_value(
    here: Plane, db: Database, clock: FakeClock
) -> None:
    oak = here.as_node("oak")
    scene = Scene(db, clock, node="oak")
    scene.sync()
    run = scene.submit()
    scene.begin(node="oak")
    messages = said_of(run)
    cursors: dict[str, int] = {}
    for message in messages:
        answer = oak.call("POST", "/v1/nodes/oak/sync", message)
        assert answer.status_code == 200, answer.text
        for batch in message["batches"]:
            assert answer.json()["cursors"][batch["stream"]] == batch["to_offset"]
        cursors |= answer.json()["cursors"]
    again = oak.call("POST", "/v1/nodes/oak/sync", messages[-2]).json()
    assert again["cursors"].items() <= cursors.items(), "said twice, stored once"

    viewer = here.people["viewer"]
    for rank, metric in ((0, "loss"), *((1, name) for name in _metrics(messages))):
        shown = viewer.get(f"/v1/runs/{run}/series", metric=metric, rank=rank, points=1000)
        expected = _told(messages, run, metric, rank)
        assert [[step, value] for _, step, value, _ in shown["points"]] == expected
    assert len(_metrics(messages)) == 20
    losses = [value for _, value in _told(messages, run, "loss", 0)]
    assert losses[:4] == [5.0, "NaN", "Infinity", "-Infinity"]
    assert len(losses) == 15
    assert math.isfinite(losses[-1])
    told = [each["kind"] for each in viewer.get(f"/v1/runs/{run}/events", limit=200)]
    for kind in ("rank_started", "rank_ready", "rank_exited"):
        assert told.count(kind) == 2, kind
    assert {parse_rank_stream(stream) for stream in cursors} >= {(run, 1, 0), (run, 1, 1)}
