"""What a node says is bounded before it is stored: nothing in it makes the control plane stumble,
now or when it is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from control.db.sql.engine import Database
from tests.integration.control.api import AGENT, SPEC, FakeNode, Plane, plane, stream_of
from tests.integration.control.conftest import FakeClock
from trainmaster.home import Home

NOW = "2026-01-01T00:00:00Z"
HUGE = 2**70
HEADER = {"boot": "b1", "version": "0", "sent_at": NOW, "address": "127.0.0.1", "slots": 4}


@pytest.fixture
def here(db: Database, tmp_path: Path, clock: FakeClock) -> Iterator[Plane]:
    with plane(db, Home(tmp_path / "home"), clock, leads=True) as made:
        yield made


@pytest.fixture
def node(here: Plane) -> FakeNode:
    made = FakeNode(here.as_node("n1"))
    made.sync()
    return made


def said(node: FakeNode, **more: Any) -> Any:
    return node.api.call("POST", f"/v1/nodes/{node.name}/sync", {**HEADER, **more})


def batch(stream: str, **more: Any) -> dict[str, Any]:
    return {"stream": stream, "from_offset": 0, "to_offset": 10, **more}


def samples(step: object = 1, at: object = 1.7e9, **values: object) -> dict[str, Any]:
    columns = {name: [value] for name, value in (values or {"loss": 1.0}).items()}
    return {"steps": [step], "at": [at], "values": columns}


@pytest.mark.parametrize("step", [-1, 0, 2**53 + 1, 2**63, 1.5, 1e3, "7", True, None])
def test_a_step_is_a_number_that_is_kept_exactly_or_refused(node: FakeNode, step: object) -> None:
    answer = said(node, batches=[batch("r1/1/0", samples=samples(step))])
    assert answer.status_code == 422
    assert answer.json()["problems"][0]["path"] == "batches[0].samples.steps[0]"


@pytest.mark.parametrize(
    "told",
    [
        samples(at="NaN"),
        samples(at=1e300),
        samples(at=-1e18),
        samples(step=99.5),
        samples(loss=1.0, at=1e300),
        samples(Loss=1.0),
        samples(**{"loss ": 1.0}),
    ],
)
def test_samples_that_could_not_be_read_again_are_refused(
    node: FakeNode, told: dict[str, Any]
) -> None:
    assert said(node, batches=[batch("r1/1/0", samples=told)]).status_code == 422


@pytest.mark.parametrize(
    "told",
    [
        {"metrics_port": HUGE},
        {"batches": [batch(AGENT, to_offset=HUGE)]},
        {"batches": [batch("r\0/1/0")]},
        {"batches": [batch("r1/\u0661/0")]},
        {"running": [{"run": "r1", "generation": HUGE}]},
        {"running": [{"run": "\0", "generation": 1}]},
        {"running": [{"run": "r1", "generation": 1, "ranks": {"0": HUGE}}]},
        {"batches": [batch(AGENT, events=[{"kind": "a", "at": "0001-01-01T00:00:00+14:00"}])]},
        {"batches": [batch(AGENT, events=[{"kind": "a", "at": "9999-12-31T23:59:59-14:00"}])]},
    ],
)
def test_what_no_database_keeps_is_refused(node: FakeNode, told: dict[str, Any]) -> None:
    assert said(node, **told).status_code == 422


def test_events_with_nonsense_in_them_are_kept_as_history_and_change_nothing(
    here: Plane, node: FakeNode
) -> None:
    with node.in_background():
        run = here.admin.post("/v1/runs", {"spec": SPEC})["id"]
    while not node.assignments:
        node.turn()
    of_rank = {"run": run, "generation": 1, "rank": 0}
    whole_checkpoint = {"location": "file:///a/g1-step1", "manifest_sha256": "sha256:0"}
    nonsense: dict[str, list[tuple[str, dict[str, Any]]]] = {
        AGENT: [
            ("rank_exited", {**of_rank, "generation": HUGE}),
            ("rank_exited", {**of_rank, "rank": HUGE}),
            ("rank_exited", {**of_rank, "rank": False}),
            ("rank_exited", {"run": [1]}),
            ("chore_done", {"id": HUGE}),
            ("chore_done", {"id": True}),
        ],
        stream_of(node.assignments[0], 0): [
            *(("order_applied", {"seq": seq}) for seq in (HUGE, "x", True, None)),
            *(("checkpoint_committed", {"step": step, **whole_checkpoint}) for step in (HUGE, -1)),
        ],
    }
    for stream, events in nonsense.items():
        told = [{"kind": kind, "at": NOW, "data": data} for kind, data in events]
        offset = node.cursors.get(stream, 0)
        sent = {**batch(stream, events=told), "from_offset": offset, "to_offset": offset + 10}
        answer = said(node, batches=[sent])
        assert answer.status_code == 200, answer.text
        assert answer.json()["cursors"] == {stream: offset + 10}
    shown = here.admin.get(f"/v1/runs/{run}")
    assert {rank["state"] for rank in shown["ranks"]} == {"assigned"}
    assert here.admin.get(f"/v1/runs/{run}/checkpoints") == []
    assert len(here.admin.get(f"/v1/runs/{run}/events", kind="order_applied")) == 4


def test_a_stream_with_a_number_too_long_to_be_one_is_nobodys(node: FakeNode) -> None:
    answer = said(node, batches=[batch(f"r1/{'9' * 180}/0"), batch(f"r1/1/{'9' * 30}")])
    assert (answer.status_code, answer.json()["cursors"]) == (200, {})
