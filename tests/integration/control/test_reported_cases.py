"""Failures others met, and bad inputs: docs/cases.md names them; here are those on facts and
samples that no other file has.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import update

from control.db import queries, tables
from control.db.accounts import Accounts
from control.db.sql.engine import Database
from control.decision import NewAttempt, Placement
from control.prometheus.exporter import KEEP_ENDED, exposition
from control.prometheus.process_metrics import Process
from control.reconciler import Reconciler
from tests.integration.control.api import FakeNode, Plane, plane
from tests.integration.control.conftest import FakeClock
from tests.integration.control.scene import Scene, columns, event, plan
from trainmaster.home import Home
from trainmaster.ids import rank_stream
from trainmaster.wire import Running

HEADER = {
    "boot": "b1",
    "version": "0",
    "sent_at": "2026-03-01T12:00:00Z",
    "address": "127.0.0.1",
    "slots": 4,
}


@pytest.fixture
def scene(db: Database, clock: FakeClock) -> Scene:
    made = Scene(db, clock)
    made.sync()
    made.submit()
    made.begin()
    return made


@pytest.fixture
def here(scene: Scene, tmp_path: Path, clock: FakeClock) -> Iterator[Plane]:
    with plane(scene.db, Home(tmp_path / "home"), clock) as made:
        yield made


@pytest.fixture
def node(here: Plane) -> FakeNode:
    return FakeNode(here.as_node("n1"))


def send(node: FakeNode, stream: str, samples: str, from_offset: int = 0) -> Any:
    """Send one batch whose samples are this text, JSON or not."""
    head = json.dumps(HEADER)[:-1]
    batch = (
        f'{{"stream": "{stream}", "from_offset": {from_offset}, "to_offset": {from_offset + 10}, '
        f'"samples": {samples}}}'
    )
    return node.api.http.post(
        f"/v1/nodes/{node.name}/sync",
        content=f'{head}, "batches": [{batch}]}}',
        headers={"Authorization": f"Bearer {node.api.token}"},
    )


def values_of(here: Plane, run: str, metric: str = "loss", **query: Any) -> list[Any]:
    return [
        point[2]
        for point in here.admin.get(f"/v1/runs/{run}/series", metric=metric, **query)["points"]
    ]


def one_value(value: str, step: str = "1") -> str:
    return f'{{"steps": [{step}], "at": [1.7e9], "values": {{"loss": [{value}]}}}}'


def test_a_b08_nul_in_a_persons_text_is_refused_alike_on_both_databases(
    scene: Scene, here: Plane
) -> None:
    asked = {"kind": "checkpoint", "why": "before\u0000lunch"}
    answer = here.admin.call("POST", f"/v1/runs/{scene.run}/requests", asked)
    assert answer.status_code == 400
    assert answer.json()["code"] == "bad_text"
    assert here.admin.get(f"/v1/runs/{scene.run}/requests") == []


def test_a_b08_nul_in_what_a_node_tells_is_replaced_and_the_fact_is_kept(
    scene: Scene, here: Plane, node: FakeNode
) -> None:
    node.sync((rank_stream(scene.run, 1, 0), None, [event("rank_failed", because="a\0b")]))
    [told] = [
        each
        for each in here.admin.get(f"/v1/runs/{scene.run}/events")
        if each["kind"] == "rank_failed"
    ]
    assert told["data"]["because"] == "a\ufffdb"


def test_a_m01_a_loss_that_is_no_number_is_shown_as_such_and_never_as_0(
    scene: Scene, here: Plane, clock: FakeClock
) -> None:
    diverged = scene.run
    scene.sync(scene.batch(0, 10, samples=columns([1], loss=[math.nan])))
    scene.submit(name="fine")
    scene.begin(slots=(2, 3))
    scene.sync(scene.batch(0, 10, samples=columns([1], loss=[0.5])))
    shown = {each["id"]: each["loss"] for each in here.admin.get("/v1/runs")}
    assert shown == {diverged: "NaN", scene.run: 0.5}


def test_a_m13_the_series_of_200_ended_runs_are_gone_after_retention(
    scene: Scene, clock: FakeClock
) -> None:
    def series() -> int:
        process = Process(up_since=clock.now())
        page, _ = exposition(scene.db, process, now=clock.now(), accounts=Accounts())
        found = text_string_to_metric_families(page.decode())
        return sum(len(family.samples) for family in found)

    before = series()
    living = scene.run
    for _ in range(200):
        scene.submit()
    many = series()
    assert before + 200 < many <= before + 200 * 40
    with scene.db.write() as connection:
        connection.execute(
            update(tables.runs)
            .where(tables.runs.c.id != living)
            .values(state="succeeded", ended_at=clock.now())
        )
    assert series() > before + 200, "the last values are still scraped"
    clock.pass_s((KEEP_ENDED + timedelta(seconds=1)).total_seconds())
    assert series() == before


def test_a_m15_a_run_without_a_step_has_no_ratio_and_no_alert(
    scene: Scene, here: Plane, clock: FakeClock
) -> None:
    reconciler = Reconciler(scene.db, clock, up_since=clock.now())
    for _ in range(3):
        clock.pass_s(1)
        scene.sync(running=[Running(run=scene.run, generation=1, ranks={0: 11, 1: 12})])
        reconciler.tick()
    assert here.admin.get("/v1/alerts") == []
    run = here.admin.get(f"/v1/runs/{scene.run}")
    assert (run["tokens_per_s"], run["loss"], run["skipped_steps"]) == (None, None, 0)
    assert run["goodput"]["productive_ratio"] in {None, 0.0}


def test_x_inge01_what_is_not_finite_travels_as_a_word_and_what_was_not_measured_as_null(
    scene: Scene, here: Plane, node: FakeNode
) -> None:
    told = {
        '"NaN"': "NaN",
        '"Infinity"': "Infinity",
        '"-Infinity"': "-Infinity",
        "null": None,
        "0": 0.0,
        "5e-324": 5e-324,
        "1.7976931348623157e308": 1.7976931348623157e308,
        "9007199254740993": 9007199254740992.0,  # a float holds no more of it
    }
    count = len(told)
    samples = (
        f'{{"steps": {list(range(1, count + 1))}, "at": {[1.7e9] * count}, '
        f'"values": {{"loss": [{", ".join(told)}]}}}}'
    )
    answer = send(node, rank_stream(scene.run, 1, 0), samples)
    assert answer.status_code == 200, answer.text
    assert values_of(here, scene.run) == list(told.values())


def test_x_inge01_and_x_inge05_anything_else_is_refused_by_name_and_nothing_is_stored(
    scene: Scene, here: Plane, node: FakeNode
) -> None:
    stream = rank_stream(scene.run, 1, 0)
    for token in (
        *("NaN", "Infinity", "-Infinity", '"nan"', '"inf"', '"5"', '""', "true"),
        *("1e400", "-1e400", "[1]", "{}", "1" + "0" * 400),
    ):
        answer = send(node, stream, one_value(token))
        assert answer.status_code == 422, (token, answer.text)
        [problem] = answer.json()["problems"]
        assert problem["path"].startswith("batches[0].samples.values.loss"), token
    assert values_of(here, scene.run) == []
    assert send(node, stream, one_value("1.5")).status_code == 200
    assert values_of(here, scene.run) == [1.5]


def test_x_inge05_a_step_is_read_back_exactly_or_refused_with_its_place(
    scene: Scene, here: Plane, node: FakeNode
) -> None:
    stream = rank_stream(scene.run, 1, 0)
    for step in (
        *("-1", "0", str(2**53 + 1), str(2**63 - 1), str(2**63)),
        *("1e400", "1.5", '"7"', "null", "true"),
    ):
        answer = send(node, stream, one_value("1.5", step))
        assert answer.status_code == 422, (step, answer.text)
        assert answer.json()["problems"][0]["path"] == "batches[0].samples.steps[0]"
    assert values_of(here, scene.run) == []
    for number, kept in enumerate((1, 2**31, 2**53)):
        assert send(node, stream, one_value("1.5", str(kept)), number * 10).status_code == 200
    points = here.admin.get(f"/v1/runs/{scene.run}/series", metric="loss")["points"]
    assert [point[1] for point in points] == [1, 2**31, 2**53]
    assert here.admin.get(f"/v1/runs/{scene.run}")["step"] == 2**53


def test_x_inge03_batches_3_1_2_end_as_in_order_and_a_rule_fires_once(
    scene: Scene, here: Plane, clock: FakeClock
) -> None:
    """A batch after a gap is not stored: the answer's cursor has it sent again, later."""
    rule = {
        "name": "too high",
        "metric": "loss",
        "when": {"condition": "above", "value": 10},
        "for": {"steps": 2},
    }
    here.admin.post("/v1/rules", {"rules": [rule]})
    reconciler = Reconciler(scene.db, clock, up_since=clock.now())
    parts = {
        number: scene.batch(
            number * 10,
            number * 10 + 10,
            samples=columns(range(number * 4 + 1, number * 4 + 5), loss=losses),
        )
        for number, losses in enumerate([[1.0, 2.0, 11.0, 12.0], [13.0, 3.0, 2.0, 1.0], [1.0] * 4])
    }

    def arrives(number: int) -> None:
        clock.pass_s(1)
        scene.sync(parts[number])
        with scene.db.write() as connection:
            connection.execute(
                update(tables.runs).values(
                    state="running", next_look_at=clock.now(), touched=tables.runs.c.touched + 1
                )
            )
        reconciler.tick()

    for number in (2, 0):
        arrives(number)
    [fired] = here.admin.get("/v1/alerts")
    assert (fired["state"], fired["first_bad_step"]) == ("firing", 3)
    clock.pass_s(600)
    for number in (1, 0, 2, 1, 2):
        arrives(number)
    assert values_of(here, scene.run) == [1.0, 2.0, 11.0, 12.0, 13.0, 3.0, 2.0, *[1.0] * 5]
    [alert] = here.admin.get("/v1/alerts")
    assert (alert["rule"], alert["state"], alert["first_bad_step"]) == ("too high", "resolved", 3)
    kinds = [each["kind"] for each in here.admin.get(f"/v1/runs/{scene.run}/events")]
    assert (kinds.count("alert_firing"), kinds.count("alert_resolved")) == (1, 1)


def test_x_inge09_a_name_that_only_looks_like_a_metrics_is_refused(
    scene: Scene, here: Plane, node: FakeNode
) -> None:
    for name in ("Loss", "loss ", "lo\u0301ss", "\uff4coss", "loss\u200b", "", "1oss"):
        samples = json.dumps({"steps": [1], "at": [1.7e9], "values": {name: [9.0], "loss": [1.0]}})
        answer = send(node, rank_stream(scene.run, 1, 0), samples)
        assert answer.status_code == 422, (name, answer.text)
    assert values_of(here, scene.run) == []


def test_x_inge11_what_is_told_of_no_run_of_this_node_makes_no_row(
    scene: Scene, here: Plane, node: FakeNode
) -> None:
    ended = scene.run
    other = scene.submit(name="other")
    scene.begin(node="n2", run=other)
    for run, generation in (("r0000000000", 1), (other, 1), (ended, 9)):
        stream = rank_stream(run, generation, 0)
        answer = send(node, stream, one_value("1.0"))
        assert answer.status_code == 200, answer.text
        assert stream not in answer.json()["cursors"], "it is told that nobody wants this"
    assert scene.rows(tables.sample_chunks) == []
    assert [row["stream"] for row in scene.rows(tables.cursors)] == []
    refused = here.as_node("n2").call("POST", "/v1/nodes/n1/sync", HEADER)
    assert refused.status_code == 403


def test_x_inge11_what_comes_late_of_a_finished_run_is_history_and_changes_nothing(
    scene: Scene, here: Plane, node: FakeNode, clock: FakeClock
) -> None:
    with scene.db.write() as connection:
        connection.execute(
            update(tables.runs).values(state="succeeded", ended_at=clock.now(), desired="running")
        )
    answer = send(node, rank_stream(scene.run, 1, 0), one_value("1.0"))
    assert answer.status_code == 200
    assert values_of(here, scene.run) == [1.0]
    Reconciler(scene.db, clock, up_since=clock.now()).tick()
    assert here.admin.get(f"/v1/runs/{scene.run}")["state"] == "succeeded"


def test_x_inge13_a_rank_that_tells_nothing_is_left_out_of_the_mean_and_shown(
    scene: Scene, here: Plane
) -> None:
    four = scene.submit(name="four")
    scene.decide(
        four,
        state="starting",
        new_attempt=_four_ranks(),
    )
    scene.run = four
    for rank in (0, 1, 2):
        told = columns([1, 2, 3], compute_s=[2.0, 4.0, 6.0])
        scene.sync(scene.batch(0, 10, rank=rank, samples=told))
    assert values_of(here, four, "compute_s") == [2.0, 4.0, 6.0]
    shown = here.admin.get(f"/v1/runs/{four}")["ranks"]
    assert [each["last_step"] for each in shown] == [3, 3, 3, None]
    with scene.db.read() as connection:
        assert queries.show(connection, four)["step"] == 3


def _four_ranks() -> NewAttempt:
    return NewAttempt(
        generation=1,
        parent_generation=None,
        cause="for the test",
        cause_kind="start",
        plan=plan(replicas=2),
        placements=tuple(Placement(rank, "n1", rank + 2) for rank in range(4)),
        checkpoint_every=10,
    )
