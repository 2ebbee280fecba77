"""POST /v1/nodes/{node}/calibrate: a chore of that node, and what it finds in its profile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from control.clock import SystemClock
from control.db.fleet import calibrations, chores
from control.db.fleet import nodes as fleet
from control.db.sql.engine import Database
from tests.integration.control.api import SPEC, Api, FakeNode, Plane, plane
from tests.integration.control.scene import Scene
from trainmaster.home import Home

FOUND = {
    "device": "cpu",
    "flops": {"float32": {"value": 4e10, "spread": 0.02}},
    "memory_bytes_per_s": {"value": 1e10, "spread": 0.01},
    "links": {"n2": {"latency_s": 1e-4, "bytes_per_s": 1e9, "residual": 0.01}},
}


@pytest.fixture
def here(db: Database, tmp_path: Path) -> Iterator[Plane]:
    with plane(db, Home(tmp_path / "home"), SystemClock()) as made:
        yield made


def nodes_of(here: Plane, **calibrates: Any) -> tuple[FakeNode, FakeNode]:
    one, other = (FakeNode(here.as_node(name), name, **calibrates) for name in ("n1", "n2"))
    one.protocol = other.protocol = 3
    for each in (one, other):
        each.turn()
    return one, other


def test_what_a_node_finds_stands_in_its_profile_with_its_age(here: Plane) -> None:
    one, other = nodes_of(here, calibrates={"ok": True, "result": FOUND})
    asked = here.people["operator"].post("/v1/nodes/n1/calibrate", expect=202)
    assert asked["peers"] == {"n2": "127.0.0.1:9100"}
    assert here.people["operator"].post("/v1/nodes/n1/calibrate")["id"] == asked["id"]
    other.turn()  # not its chore
    assert here.admin.get(f"/v1/requests/{asked['id']}")["state"] == "pending"
    one.turn()
    done = here.admin.get(f"/v1/requests/{asked['id']}")
    assert (done["state"], done["ok"]) == ("applied", True)
    [first, second] = here.admin.get("/v1/nodes")
    told = first["profile"]["calibration"]
    assert told["flops"]["float32"]["value"] == 4e10
    assert told["age_s"] >= 0
    assert told["at"].endswith("Z") or "+" in told["at"]
    assert "calibration" not in second["profile"]
    assert not {"calibration", "calibrated_at"} & first.keys()
    one.turn()  # what a node says of itself anew takes nothing away
    with here.db.read() as connection:
        [seen, _] = fleet.read(connection, None, SystemClock().now())
    assert seen.profile["calibration"]["links"]["n2"]["bytes_per_s"] == 1e9
    assert "calibration_requested" in {each["action"] for each in here.admin.get("/v1/audit")}


@pytest.mark.parametrize(
    ("told", "ok"),
    [
        ({"ok": False, "because": "it took longer than 120 s"}, False),
        ({"ok": True, "result": {"device": "cpu", "flops": {"float32": {"value": -1}}}}, True),
        ({"ok": True, "result": None}, True),
    ],
)
def test_what_was_not_found_changes_nothing(here: Plane, told: dict[str, Any], ok: bool) -> None:
    one, _ = nodes_of(here, calibrates=told)
    asked = here.admin.post("/v1/nodes/n1/calibrate")
    one.turn()
    done = here.admin.get(f"/v1/requests/{asked['id']}")
    assert (done["state"], done["ok"]) == ("applied", ok)
    assert "calibration" not in here.admin.get("/v1/nodes/n1")["profile"]


def test_a_node_that_cannot_be_measured_is_refused(here: Plane) -> None:
    nodes_of(here)
    refused = here.people["viewer"].call("POST", "/v1/nodes/n1/calibrate")
    assert refused.status_code == 403
    assert here.admin.call("POST", "/v1/nodes/nowhere/calibrate").status_code == 404
    with here.db.write() as connection:
        now = SystemClock().now()
        chores.ask(connection, "verify", {"location": "x"}, now=now)
        args = calibrations.chore_args(connection, "n1", heard_since=now)
    assert args == {"peers": {}}, "n2 was silent since"


def test_a_node_with_ranks_is_not_measured(here: Plane) -> None:
    nodes_of(here)
    scene = Scene(here.db, SystemClock())
    run = scene.submit()
    scene.begin()
    refused = here.admin.call("POST", "/v1/nodes/n1/calibrate")
    assert refused.status_code == 409
    assert refused.json()["code"] == "node_busy"
    assert run in refused.json()["detail"]


def test_a_link_token_is_for_agents_to_ask_for_and_good_for_nothing_here(here: Plane) -> None:
    node = here.as_node("n1")
    token = node.post("/v1/nodes/n1/link-token", expect=201)["token"]
    node.post("/v1/nodes/n2/link-token", expect=403)
    here.people["operator"].post("/v1/nodes/n1/link-token", expect=403)
    bearer = Api(here.http, token)
    assert bearer.get("/v1/logins/current")["role"] == "link"
    for path in ("/v1/nodes", "/v1/runs", "/metrics", "/v1/audit"):
        assert bearer.call("GET", path).status_code == 403
    bearer.post("/v1/nodes/n1/sync", expect=403)
    [stored] = [each for each in here.admin.get("/v1/tokens") if each["role"] == "link"]
    assert stored["name"] == "links of n1"
    assert stored["expires_at"] is not None
    here.admin.post("/v1/tokens", {"role": "link"}, expect=422)


def test_layers_of_a_workload_are_measured_where_a_spec_is_given(here: Plane) -> None:
    layer = {"forward_per_sample_s": 1e-3, "backward_per_sample_s": 2e-3, "kept_bytes": 4096}
    told = {"workload": "w:w", "samples": [1, 4], "layers": [layer]}
    one, _ = nodes_of(here, calibrates={"ok": True, "result": {**FOUND, "workloads": {"k1": told}}})
    path = "/v1/nodes/n1/calibrate"
    asked = here.people["operator"].post(path, {"spec": SPEC}, expect=202)
    assert asked["workload"] == SPEC["workload"]
    one.turn()
    here.people["operator"].post(path, {"spec": {**SPEC, "colour": "red"}}, expect=422)
    one.calibrates = {"ok": True, "result": {**FOUND, "workloads": {"k2": told}}}
    here.people["operator"].post(path, expect=202)
    one.turn()
    [first, _] = here.admin.get("/v1/nodes")
    found = first["profile"]["calibration"]["workloads"]
    assert list(found) == ["k1", "k2"], "what was measured of other workloads stays"
    assert found["k1"]["layers"][0]["kept_bytes"] == 4096
