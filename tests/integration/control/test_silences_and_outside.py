"""Silences, and alerts from outside: through the API, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from control.db import tables
from control.db.load import load
from control.db.sql.engine import Database
from control.decision import AlertChange, IncidentChange
from tests.integration.control.api import FakeNode, Plane, plane
from tests.integration.control.conftest import FakeClock
from tests.integration.control.scene import Scene
from trainmaster.home import Home

RULE = "gradient not finite"


@pytest.fixture
def here(db: Database, clock: FakeClock, tmp_path: Path) -> Iterator[Plane]:
    with plane(db, Home(tmp_path / "home"), clock) as found:
        yield found


@pytest.fixture
def scene(here: Plane, clock: FakeClock) -> Scene:
    FakeNode(here.as_node("n1")).turn()
    found = Scene(here.db, clock)
    found.submit()
    found.begin()
    found.decide(state="running")
    return found


def silenced(scene: Scene, rule: str = RULE) -> bool:
    with scene.db.read() as connection:
        loaded = load(connection, scene.run, now=scene.clock.now(), control_up_since=None)
    assert loaded is not None
    return loaded.snapshot.is_silenced(rule)


def test_a_silence_holds_for_its_time_and_is_audited(here: Plane, scene: Scene) -> None:
    ada = here.people["operator"]
    added = ada.post("/v1/silences", {"rule": RULE, "for_s": 7200, "why": "noise"}, expect=201)
    assert (added["state"], added["rule"], added["run"]) == ("active", RULE, None)
    assert silenced(scene)
    assert not silenced(scene, "another rule")
    assert here.people["viewer"].get("/v1/silences") == [added]
    scene.clock.pass_s(7201)
    assert not silenced(scene)
    assert here.people["viewer"].get("/v1/silences") == []
    assert [each["state"] for each in ada.get("/v1/silences", ended=True)] == ["ended"]
    assert ada.get("/v1/audit")[-1]["action"] == "silence_added"


def test_a_silence_is_ended_once(here: Plane, scene: Scene) -> None:
    ada = here.people["operator"]
    added = ada.post("/v1/silences", {"rule": RULE, "run": scene.run, "for_s": 60}, expect=201)
    scene.clock.pass_s(1)
    ended = ada.call("DELETE", f"/v1/silences/{added['id']}").json()
    assert ended["state"] == "ended"
    assert not silenced(scene)
    again = ada.call("DELETE", f"/v1/silences/{added['id']}")
    assert again.status_code == 409


def test_a_maintenance_window_begins_when_it_is_to_and_is_about_its_node(
    here: Plane, scene: Scene
) -> None:
    ada = here.people["operator"]
    begins_at = scene.clock.now() + timedelta(hours=1)
    body = {"node": "n1", "for_s": 3600, "begins_at": begins_at.isoformat()}
    assert ada.post("/v1/silences", body, expect=201)["state"] == "pending"
    assert not silenced(scene)
    scene.clock.pass_s(3601)
    assert silenced(scene)
    FakeNode(here.as_node("n2"), name="n2").turn()
    scene.clock.pass_s(3600)
    ada.post("/v1/silences", {"node": "n2", "for_s": 60}, expect=201)
    assert not silenced(scene), "no rank of the run is there"


def test_alerts_say_that_they_are_silenced(here: Plane, scene: Scene) -> None:
    scene.decide(alerts=(AlertChange(RULE, "run", "firing", 1.0, 0.5, 7, "warning", 1),))
    viewer = here.people["viewer"]
    assert [each["silenced"] for each in viewer.get("/v1/alerts")] == [False]
    here.people["operator"].post("/v1/silences", {"node": "n1", "for_s": 60}, expect=201)
    assert [each["silenced"] for each in viewer.get(f"/v1/runs/{scene.run}/alerts")] == [True]


@pytest.mark.parametrize(
    ("body", "status", "named"),
    [
        ({"rule": "no such", "for_s": 60}, 404, "no rule 'no such'"),
        ({"run": "rnone", "for_s": 60}, 404, "no run"),
        ({"node": "nowhere", "for_s": 60}, 404, "no node"),
        ({"rule": RULE, "for_s": 0}, 422, "for_s"),
        ({"rule": RULE, "for_s": 1e9}, 422, "for_s"),
        ({"rule": RULE}, 422, "for_s"),
        ({"for_s": 60, "begins_at": "2020-01-01T00:00:00Z"}, 422, "over already"),
        ({"for_s": 60, "begins_at": "2020-01-01T00:00:00"}, 422, "begins_at"),
        ({"for_s": 60, "begins_at": "9999-12-31T23:59:59-05:00"}, 422, "begins_at"),
        ({"for_s": 60, "begins_at": "0001-01-01T00:00:00+05:00"}, 422, "begins_at"),
    ],
)
def test_a_bad_silence_is_refused_by_name(
    here: Plane, body: dict[str, Any], status: int, named: str
) -> None:
    answer = here.people["operator"].call("POST", "/v1/silences", body)
    assert answer.status_code == status, answer.text
    assert named in answer.text
    assert here.people["viewer"].call("POST", "/v1/silences", body).status_code == 403


def asking(scene: Scene) -> str:
    proposed = {
        "action": {"action": "rollback", "skip": True},
        "rule": RULE,
        "scope": "run",
        "severity": "critical",
        "evidence": "The rule fires",
        "because": "The rule fires. It asks.",
        "generation": 1,
        "first_bad_step": 7,
        "last_bad_step": 9,
        "at": scene.clock.now().isoformat(),
        "answer_by": (scene.clock.now() + timedelta(hours=1)).isoformat(),
        "then": "dismiss",
    }
    incident = f"{scene.run}-i1"
    change = IncidentChange(
        incident, RULE, "waiting", 0, 7, 9, "It asks.", actions=(), verification={},
        proposed=proposed,
    )  # fmt: skip
    scene.decide(incidents=(change,))
    return incident


def test_an_answer_is_a_request_that_the_reconciler_answers(here: Plane, scene: Scene) -> None:
    incident = asking(scene)
    ada = here.people["operator"]
    path = f"/v1/incidents/{incident}"
    assert ada.get(path)["proposed"]["action"]["action"] == "rollback"
    bad = ada.call("POST", f"{path}/approve", {"action": "explode"})
    assert bad.status_code == 400
    stale = ada.call("POST", f"{path}/approve", {"expected_version": 1})
    assert (stale.status_code, stale.json()["code"]) == (409, "stale_version")
    body = {"action": "checkpoint", "why": "look first", "idempotency_key": "k1"}
    first = ada.post(f"{path}/approve", body, expect=202)
    assert (first["kind"], first["state"], first["why"]) == ("approve", "pending", "look first")
    assert ada.post(f"{path}/approve", body)["id"] == first["id"], "the same key asks once"
    assert here.people["viewer"].call("POST", f"{path}/dismiss").status_code == 403
    assert ada.call("POST", "/v1/incidents/none/approve").status_code == 404
    scene.decide(
        incidents=(IncidentChange(incident, RULE, "closed", 0, 7, 9, "Over.", closed=True),)
    )
    over = ada.call("POST", f"{path}/dismiss")
    assert (over.status_code, over.json()["code"]) == (409, "not_waiting")


def message(status: str = "firing", *, starts: int = 0, **labels: str) -> dict[str, Any]:
    return {
        "version": "4",
        "groupKey": "{}:{}",
        "status": status,
        "receiver": "trainmaster",
        "groupLabels": {},
        "commonLabels": {},
        "commonAnnotations": {},
        "externalURL": "http://alertmanager",
        "truncatedAlerts": 0,
        "alerts": [
            {
                "status": status,
                "labels": {"alertname": "GpuXid", "severity": "critical", **labels},
                "annotations": {"summary": "XID 79 on {{ $labels.node }}"},
                "startsAt": f"2026-03-01T11:00:{starts:02d}.123456789Z",
                "endsAt": "2026-03-01T11:30:00Z"
                if status == "resolved"
                else "0001-01-01T00:00:00Z",
                "generatorURL": "http://prometheus/graph",
                "fingerprint": "6c2f7d7c5a1b0e3f",
            }
        ],
    }


def test_an_alert_from_outside_cordons_its_node_once(here: Plane, scene: Scene) -> None:
    told = message(node="n1", trainmaster_action="cordon")
    operator = here.people["operator"]
    [first] = operator.post("/v1/alertmanager", told)["alerts"]
    assert first["outcome"] == "cordoned node n1"
    [node] = operator.get("/v1/nodes")
    assert node["cordoned"]
    operator.post("/v1/nodes/n1/uncordon")
    for _ in range(3):
        assert operator.post("/v1/alertmanager", told)["alerts"][0]["outcome"] == "known"
    assert not operator.get("/v1/nodes")[0]["cordoned"], "told again is not fired again"
    [alert] = operator.get("/v1/alerts")
    assert (alert["source"], alert["rule"], alert["state"]) == ("external", "GpuXid", "firing")
    assert alert["annotations"]["summary"] == "XID 79 on {{ $labels.node }}"

    [over] = operator.post("/v1/alertmanager", message("resolved", node="n1"))["alerts"]
    assert over["outcome"] == "resolved"
    late = operator.post("/v1/alertmanager", told)["alerts"][0]
    assert late["outcome"] == "known", "a repetition that comes late does not open it again"
    assert [each["state"] for each in operator.get("/v1/alerts")] == ["resolved"]
    operator.post("/v1/alertmanager", message(starts=5, node="n1", trainmaster_action="cordon"))
    assert operator.get("/v1/nodes")[0]["cordoned"], "another beginning is another alert"


def test_an_alert_from_outside_asks_of_a_run_as_a_person_would(here: Plane, scene: Scene) -> None:
    told = message(run=scene.run, trainmaster_action="checkpoint")
    operator = here.people["operator"]
    [first] = operator.post("/v1/alertmanager", told)["alerts"]
    assert first["outcome"].startswith("asked for: checkpoint (request ")
    operator.post("/v1/alertmanager", told)
    [request] = operator.get(f"/v1/runs/{scene.run}/requests")
    assert (request["kind"], request["state"]) == ("checkpoint", "pending")
    kinds = [each["kind"] for each in operator.get(f"/v1/runs/{scene.run}/events")]
    assert "external_alert_firing" in kinds
    assert [each["run"] for each in operator.get(f"/v1/runs/{scene.run}/alerts")] == [scene.run]


def test_an_alert_whose_clock_is_far_off_is_stored_and_spoils_no_other(
    here: Plane, scene: Scene
) -> None:
    first, ended, good = (message(node="n1")["alerts"][0] for _ in range(3))
    first |= {"startsAt": "0001-01-01T00:00:00+05:00", "fingerprint": "f1"}
    ended |= {"endsAt": "9999-12-31T23:59:59-05:00", "status": "resolved", "fingerprint": "f2"}
    operator = here.people["operator"]
    told = operator.post("/v1/alertmanager", {"version": "4", "alerts": [first, ended, good]})
    assert [each["outcome"] for each in told["alerts"]] == ["stored"] * 3
    assert len(operator.get("/v1/alerts")) == 3


def test_an_alert_with_a_long_text_is_stored_in_part_and_spoils_no_other(
    here: Plane, scene: Scene
) -> None:
    first, good = (message(node="n1")["alerts"][0] for _ in range(2))
    first |= {"annotations": {"description": "rank 7 " * 5000}, "fingerprint": "f1"}
    operator = here.people["operator"]
    told = operator.post("/v1/alertmanager", {"version": "4", "alerts": [first, good]})
    assert [each["outcome"] for each in told["alerts"]] == ["stored"] * 2
    kept = operator.get("/v1/alerts")[0]["annotations"]["description"]
    assert (kept[:6], len(kept)) == ("rank 7", 4000)


@pytest.mark.parametrize(
    ("labels", "outcome"),
    [
        ({"run": "rnobody", "trainmaster_action": "checkpoint"}, "names a run that is known"),
        ({"node": "nowhere", "trainmaster_action": "cordon"}, "names a node that is known"),
        ({"node": "n1", "trainmaster_action": "stop"}, "TRAINMASTER_EXTERNAL_ACTIONS"),
        ({"node": "n1", "trainmaster_action": "rm -rf /"}, "is none of"),
        ({}, "stored"),
    ],
)
def test_what_is_not_allowed_or_not_known_is_stored_and_does_nothing(
    here: Plane, scene: Scene, labels: dict[str, str], outcome: str
) -> None:
    operator = here.people["operator"]
    [told] = operator.post("/v1/alertmanager", message(**labels))["alerts"]
    assert outcome in told["outcome"]
    assert not operator.get("/v1/nodes")[0]["cordoned"]
    assert scene.rows(tables.requests) == []
    assert len(operator.get("/v1/alerts")) == 1


@pytest.mark.parametrize(
    "spoil",
    [
        lambda body: body.update(version="3"),
        lambda body: body.update(alerts="none"),
        lambda body: body["alerts"][0].update(status="maybe"),
        lambda body: body["alerts"][0].pop("fingerprint"),
        lambda body: body["alerts"][0].update(fingerprint="../../etc"),
        lambda body: body["alerts"][0].update(startsAt="yesterday"),
        lambda body: body["alerts"][0].update(labels={f"l{i}": "" for i in range(201)}),
        lambda body: body.update(alerts=body["alerts"] * 1001),
    ],
)
def test_what_is_no_message_is_refused_and_nothing_is_stored(
    here: Plane, scene: Scene, spoil: Any
) -> None:
    body = message()
    spoil(body)
    answer = here.people["operator"].call("POST", "/v1/alertmanager", body)
    assert answer.status_code == 422, answer.text
    assert scene.rows(tables.external_alerts) == []
    assert here.people["viewer"].call("POST", "/v1/alertmanager", message()).status_code == 403
