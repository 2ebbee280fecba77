"""Steering, and reading what came of it: each ask once, one restore at a time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from control.clock import SystemClock
from control.db import tables
from control.db.sql.engine import Database
from control.decision import AlertChange, NewStacks
from tests.integration.control.api import SPEC, FakeNode, Plane, plane
from tests.integration.control.scene import STORE, Scene, columns, event
from trainmaster.home import Home


@pytest.fixture
def here(db: Database, tmp_path: Path) -> Iterator[Plane]:
    with plane(db, Home(tmp_path / "home"), SystemClock(), allow_drills=True) as made:
        yield made


@pytest.fixture
def scene(here: Plane) -> Scene:
    """A running run with two checkpoints, without anybody who decides."""
    made = Scene(here.db, SystemClock())
    made.sync()
    made.submit()
    made.begin()
    made.decide(state="running")
    steps = list(range(1, 26))
    commits = [
        event(
            "checkpoint_committed",
            step=step,
            location=f"{STORE}/{made.run}/g1-step{step}",
            manifest_sha256="sha256:" + "0" * 64,
        )
        for step in (10, 20)
    ]
    made.sync(made.batch(0, 10, samples=columns(steps, loss=[1.0] * 25), events=commits))
    return made


def ask(here: Plane, run: str, kind: str, args: Any = None, **more: Any) -> Any:
    body = {"kind": kind, "args": args or {}, **more}
    return here.people["operator"].call("POST", f"/v1/runs/{run}/requests", body)


def test_a_request_is_stored_once_per_key_and_shows_how_far_it_has_come(
    here: Plane, scene: Scene
) -> None:
    first = ask(here, scene.run, "checkpoint", why="lunch", idempotency_key="k")
    assert first.status_code == 202
    again = ask(here, scene.run, "checkpoint", idempotency_key="k")
    assert again.json()["id"] == first.json()["id"]
    other = ask(here, scene.run, "pause", idempotency_key="k")
    assert (other.status_code, other.json()["code"]) == (422, "key_reused")
    shown = here.admin.get(f"/v1/requests/{first.json()['id']}")
    assert (shown["kind"], shown["state"], shown["actor"], shown["why"], shown["order"]) == (
        "checkpoint", "pending", "operator", "lunch", None,
    )  # fmt: skip
    from control.decision import NewOrder, RequestChange

    request = shown["id"]
    scene.decide(
        orders=(NewOrder("checkpoint", request=request),),
        requests=(RequestChange(request, "accepted", generation=1),),
    )
    scene.sync(scene.batch(10, 20, events=[event("order_received", seq=1)]))
    shown = here.admin.get(f"/v1/requests/{request}")
    assert (shown["state"], shown["order"]["state"]) == ("accepted", "received")
    audited = [each["action"] for each in here.admin.get("/v1/audit", target=scene.run)]
    assert audited == ["run_submitted", "checkpoint_requested"]


def test_a_request_that_the_state_does_not_allow_is_409_with_a_sentence(
    here: Plane, scene: Scene
) -> None:
    scene.decide(state="succeeded")
    for kind in ("pause", "resume", "stop", "checkpoint"):
        answer = ask(here, scene.run, kind)
        assert (answer.status_code, answer.json()["code"]) == (409, "not_allowed_now")
        assert "succeeded" in answer.json()["detail"]


def test_a_request_on_a_version_that_has_passed_is_409(here: Plane, scene: Scene) -> None:
    version = here.admin.get(f"/v1/runs/{scene.run}")["version"]
    scene.decide(because="moved on")
    answer = ask(here, scene.run, "checkpoint", expected_version=version)
    assert (answer.status_code, answer.json()["code"]) == (409, "stale_version")
    assert ask(here, scene.run, "checkpoint", expected_version=version + 1).status_code == 202


def test_of_two_restores_at_once_one_wins(here: Plane, scene: Scene) -> None:
    targets = [f"{scene.run}-g1-s10", f"{scene.run}-g1-s20"] * 3
    with ThreadPoolExecutor(6) as pool:
        answers = list(
            pool.map(lambda each: ask(here, scene.run, "restore", {"checkpoint": each}), targets)
        )
    assert sorted(answer.status_code for answer in answers) == [202, 409, 409, 409, 409, 409]
    loser = next(answer for answer in answers if answer.status_code == 409)
    assert loser.json()["code"] == "request_under_way"
    assert "restore" in loser.json()["detail"]


def test_a_preview_tells_what_is_lost_and_what_differs_and_changes_nothing(
    here: Plane, scene: Scene
) -> None:
    before = scene.row(tables.runs)
    body = {"checkpoint": f"{scene.run}-g1-s20", "skip_steps": 3, "lr_factor": 0.5}
    told = here.people["viewer"].post(f"/v1/runs/{scene.run}/restore-preview", body)
    assert (told["lost_steps"], told["allowed"]) == ([21, 25], True)
    assert told["checkpoint"]["state"] == "committed"
    assert told["budgets"]["restarts"] == {"spent": 0, "allowed": 5}
    assert told["budgets"]["rollbacks"] == {"spent": 0, "allowed": 3}
    assert any("21 to 23" in line for line in told["differs"])
    assert any("0.5" in line for line in told["differs"])
    assert scene.row(tables.runs)["version"] == before["version"]


@pytest.mark.parametrize(
    ("kind", "args", "path"),
    [
        ("pause", {"holt": True}, "holt"),
        ("stop", {"checkpoint": "yes"}, "checkpoint"),
        ("restore", {}, "checkpoint"),
        ("restore", {"checkpoint": "x-g1-s1", "lr_factor": -1}, "lr_factor"),
        ("drill", {"fault": "fire"}, "fault"),
        ("drill", {"fault": "nan", "rank": 7}, "rank"),
    ],
)
def test_arguments_that_make_no_sense_are_told_by_name(
    here: Plane, scene: Scene, kind: str, args: dict[str, Any], path: str
) -> None:
    answer = ask(here, scene.run, kind, args)
    assert answer.status_code == 422, answer.text
    assert path in [each["path"] for each in answer.json()["problems"]]


def test_a_checkpoint_of_another_run_or_one_that_is_bad_is_refused(
    here: Plane, scene: Scene
) -> None:
    from control.decision import CheckpointChange

    assert ask(here, scene.run, "restore", {"checkpoint": "x-g1-s1"}).status_code == 404
    checkpoint = f"{scene.run}-g1-s10"
    scene.decide(checkpoints=(CheckpointChange(checkpoint, "a bit", state="quarantined"),))
    answer = ask(here, scene.run, "restore", {"checkpoint": checkpoint})
    assert (answer.status_code, answer.json()["code"]) == (409, "checkpoint_unusable")


def test_drills_are_forbidden_unless_allowed(db: Database, tmp_path: Path) -> None:
    with plane(db, Home(tmp_path / "home"), SystemClock()) as strict:
        run = strict.admin.post("/v1/runs", {"spec": SPEC})["id"]
        answer = strict.admin.call("POST", f"/v1/runs/{run}/drills", {"fault": "nan"})
        assert (answer.status_code, answer.json()["code"]) == (403, "drills_forbidden")


def test_pin_and_unpin_a_checkpoint(here: Plane, scene: Scene) -> None:
    path = f"/v1/checkpoints/{scene.run}-g1-s10"
    assert here.admin.post(f"{path}/pin")["pinned"] is True
    assert here.admin.post(f"{path}/unpin")["pinned"] is False


def test_a_node_reads_a_checkpoint_on_request(here: Plane, scene: Scene) -> None:
    node = FakeNode(here.as_node("n1"))
    node.turn()
    path = f"/v1/checkpoints/{scene.run}-g1-s10"
    asked = here.admin.post(f"{path}/verify")
    assert (asked["state"], asked["id"].startswith("chore-")) == ("pending", True)
    [chore] = scene.rows(tables.chores)
    assert chore["args"]["manifest_sha256"] == "sha256:" + "0" * 64, "a forged manifest would pass"
    node.turn()
    told = here.admin.get(f"/v1/requests/{asked['id']}")
    assert (told["state"], told["ok"], told["findings"]) == ("applied", True, [])
    assert here.admin.get(path)["verified_at"] is not None


def test_a_node_compares_two_checkpoints_once(here: Plane, scene: Scene) -> None:
    node = FakeNode(here.as_node("n1"), protocol=3)
    node.turn()
    first, second = f"{scene.run}-g1-s10", f"{scene.run}-g1-s20"
    path = f"/v1/checkpoints/{first}/compare/{second}"
    viewer, operator = here.people["viewer"], here.people["operator"]
    assert viewer.call("GET", path).status_code == 404
    assert viewer.call("POST", path).status_code == 403
    asked = operator.post(path, expect=202)
    assert (asked["state"], asked["checkpoint"], asked["other"]) == ("pending", first, second)
    assert viewer.get(path)["state"] == "pending"
    [chore] = scene.rows(tables.chores)
    assert (chore["args"]["location"], chore["args"]["other_location"]) == (
        f"{STORE}/{scene.run}/g1-step10",
        f"{STORE}/{scene.run}/g1-step20",
    )
    node.turn()
    told = viewer.get(path)
    assert (told["state"], told["ok"], told["findings"]) == ("applied", True, [])
    assert told["whole"] == {"norm": 2.0}
    assert operator.post(path, expect=200)["id"] == asked["id"], "their bytes do not change"
    assert operator.call("POST", f"/v1/checkpoints/{first}/compare/r9-g1-s1").status_code == 404


def test_cordon_and_uncordon_a_node(here: Plane) -> None:
    FakeNode(here.as_node("n1")).turn()
    operator = here.people["operator"]
    assert operator.post("/v1/nodes/n1/cordon")["cordoned"] is True
    [node] = operator.get("/v1/nodes")
    assert (node["name"], node["state"], node["slots"], node["cordoned"]) == (
        "n1", "present", 4, True,
    )  # fmt: skip
    assert operator.post("/v1/nodes/n1/uncordon", {"why": "mended"})["cordoned"] is False
    assert operator.call("POST", "/v1/nodes/nowhere/cordon").status_code == 404


def test_an_alert_that_healed_before_it_fired_is_listed_only_when_asked_for(
    here: Plane, scene: Scene
) -> None:
    for state in ("pending", "inactive", "pending", "firing"):
        scene.decide(alerts=(AlertChange("r", "run", state, 1.0, 0.5, 7, "warning", 1),))
    viewer = here.people["viewer"]
    for path in ("/v1/alerts", f"/v1/runs/{scene.run}/alerts"):
        assert [each["state"] for each in viewer.get(path)] == ["firing"]
        assert [each["state"] for each in viewer.get(path, state="inactive")] == ["inactive"]
    flaps = AlertChange("r", "run", "firing", 0.4, 0.5, 9, "warning", 1, flapping=True)
    scene.decide(alerts=(flaps,))
    [alert] = viewer.get("/v1/alerts")
    assert (alert["flapping"], alert["first_bad_step"]) == (True, 9)


def test_accounts_of_a_run_and_of_the_fleet_are_told_and_sum_up(here: Plane, scene: Scene) -> None:
    spent = here.admin.get(f"/v1/runs/{scene.run}/goodput")
    cost = here.admin.get(f"/v1/runs/{scene.run}/recoveries")
    fleet = here.admin.get("/v1/goodput")
    assert fleet["runs"] == 1
    assert fleet["recoveries"] == cost
    assert fleet["goodput"].keys() == spent.keys()
    buckets = sum(v for k, v in spent.items() if k not in {"wall_s", "productive_ratio"})
    assert buckets == pytest.approx(spent["wall_s"], rel=0.005)
    page = here.admin.call("GET", "/metrics").text
    for name in ("goodput_seconds_total", "goodput_ratio", "lost_steps_total"):
        assert f"trainmaster_{name}{{" in page
    assert f'bucket="productive_step",run="{scene.run}"' in page


def test_stacks_are_asked_for_told_by_agents_and_kept_with_their_call(
    here: Plane, scene: Scene
) -> None:
    assert ask(here, scene.run, "stacks", {"rank": 99}).status_code == 422
    asked = ask(here, scene.run, "stacks", {"rank": 0}).json()
    scene.decide(stacks=(NewStacks((0,), request=asked["id"]),))
    [call] = here.admin.get(f"/v1/runs/{scene.run}/stacks")
    assert (call["request"], call["ranks"], call["missing"]) == (asked["id"], [0], [0])
    told = {"run": scene.run, "generation": call["generation"], "rank": 0, "id": call["id"]}
    answer = {**told, "how": "py-spy", "text": "train (worker/train.py:98)", "because": ""}
    scene.sync(scene.agent_batch(0, 10, event("stacks_dumped", **answer)))
    [call] = here.admin.get(f"/v1/runs/{scene.run}/stacks")
    assert call["missing"] == []
    assert call["stacks"][0]["text"] == "train (worker/train.py:98)"
    events = here.admin.get(f"/v1/runs/{scene.run}/events", kind="stacks_dumped")
    assert "text" not in events[-1]["data"], "history is kept short"
    path = f"/v1/runs/{scene.run}/events"
    # Events are listed as they happened, and paged as they came in.
    ids = sorted(each["id"] for each in here.admin.get(path))
    older = here.admin.get(path, newest=True, limit=2, before=ids[-1])
    assert sorted(each["id"] for each in older) == ids[-3:-1]


def test_prometheus_finds_agents_and_reads_runs(here: Plane, scene: Scene) -> None:
    FakeNode(here.as_node("n1")).turn()
    assert here.people["viewer"].get("/v1/prometheus/targets") == [
        {"targets": ["127.0.0.1:9100"], "labels": {"node": "n1"}}
    ]
    text = here.people["viewer"].call("GET", "/metrics").text
    assert f'trainmaster_run_state{{run="{scene.run}",state="running"}} 1.0' in text
    assert f'trainmaster_run_state{{run="{scene.run}",state="paused"}} 0.0' in text
    assert f'trainmaster_restarts_total{{run="{scene.run}"}} 0.0' in text
    assert "trainmaster_checkpoint_age_seconds" in text


def test_series_over_http_are_as_the_contract_has_them(here: Plane, scene: Scene) -> None:
    scene.sync(scene.batch(10, 20, samples=columns([26, 27], loss=[float("nan"), None])))
    path = f"/v1/runs/{scene.run}/series"
    told = here.people["viewer"].get(path, metric="loss", after_step=24)
    assert [point[:3] for point in told["points"]] == [
        [1, 25, 1.0], [1, 26, "NaN"], [1, 27, None],
    ]  # fmt: skip
    assert (told["unit"], told["total_points"], told["downsampled"]) == ("nats", 3, False)
    assert told["points"][0][3].endswith("Z")
    begun = here.people["viewer"].get(path, metric="loss", after="", columns=True, after_step=24)
    assert (begun["columns"]["step"], begun["columns"]["value"]) == (
        [25, 26, 27],
        [1.0, "NaN", None],
    )
    more = here.people["viewer"].get(path, metric="loss", after=begun["cursor"], after_step=24)
    assert (more["points"], more["reset"], more["cursor"]) == ([], False, begun["cursor"])
    wrong = here.people["viewer"].call("GET", path, params={"metric": "loss", "after": "x"})
    assert (wrong.status_code, wrong.json()["code"]) == (400, "bad_cursor")
    unknown = here.people["viewer"].call("GET", path, params={"metric": "losss"})
    assert (unknown.status_code, unknown.json()["code"]) == (400, "unknown_metric")
    assert here.people["viewer"].call("GET", path, params={"metric": "loss", "rank": "x"}
        ).status_code == 422  # fmt: skip


def test_a_dry_run_of_retention_tells_of_each_checkpoint_and_changes_nothing(
    here: Plane, scene: Scene
) -> None:
    before = here.people["viewer"].get(f"/v1/runs/{scene.run}/checkpoints")
    told = here.people["viewer"].get(f"/v1/runs/{scene.run}/retention")
    assert [each["step"] for each in told] == [10, 20]
    assert told[-1]["goes"] is False
    assert all(each["because"].startswith("Kept") != each["goes"] for each in told)
    assert here.people["viewer"].get(f"/v1/runs/{scene.run}/checkpoints") == before
    assert here.people["viewer"].call("GET", "/v1/runs/none/retention").status_code == 404
