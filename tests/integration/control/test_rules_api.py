"""Rules over HTTP: added, edited, kept in all versions, and told to Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from control.clock import SystemClock
from control.db.sql.engine import Database
from tests.integration.control.api import Plane, plane
from trainmaster.home import Home


@pytest.fixture
def here(db: Database, tmp_path: Path) -> Iterator[Plane]:
    with plane(db, Home(tmp_path / "home"), SystemClock(), allow_drills=True) as made:
        yield made


def test_rules_are_added_edited_switched_and_removed_and_every_version_is_kept(
    here: Plane,
) -> None:
    operator = here.people["operator"]
    rule = {
        "name": "slow",
        "metric": "step_time_s",
        "when": {"condition": "above", "value": 2.0},
        "for": {"steps": 3},
    }
    [added] = operator.post("/v1/rules", {"rules": [rule]}, expect=201)
    assert (added["version"], added["pack"], added["changed_by"]) == (1, "default", "operator")
    assert operator.call("POST", "/v1/rules", {"rules": [rule]}).status_code == 409
    path = "/v1/rules/slow"
    edit = {"set": {"when.value": 3.0}, "expected_version": 1}
    assert operator.call("PATCH", path, edit).json()["when"]["value"] == 3.0
    assert operator.call("PATCH", path, edit).status_code == 409
    assert operator.post(f"{path}/disable")["enabled"] is False
    whole = operator.get(path)
    assert operator.call("PUT", path, {**whole, "enabled": True}).json()["version"] == 4
    assert operator.call("PUT", path, whole).status_code == 409, "an edit between is not lost"
    bad = operator.call("PUT", path, {**rule, "metric": "losss"})
    assert (bad.status_code, bad.json()["problems"][0]["path"]) == (422, "metric")
    assert operator.call("DELETE", path).status_code == 204
    assert operator.call("GET", path).status_code == 404
    changes = [each["change"] for each in operator.get(f"{path}/history")]
    assert changes == ["added", "edited", "disabled", "edited", "removed"]

    both = [{**rule, "name": "new"}, rule]
    told = operator.post("/v1/rules", {"rules": both, "why": "again"}, expect=201)
    assert [(each["name"], each["version"]) for each in told] == [("new", 1), ("slow", 6)]
    audited = [(each["action"], each["target"]) for each in operator.get("/v1/audit", limit=2)]
    assert audited == [("rule_added", "rule new"), ("rule_added", "rule slow")]
    more = [{**rule, "name": "third"}, rule]
    assert operator.call("POST", "/v1/rules", {"rules": more}).status_code == 409
    assert operator.call("GET", "/v1/rules/third").status_code == 404, "all of them, or none"


def test_rules_are_listed_oldest_first_however_late_they_are_edited(here: Plane) -> None:
    operator = here.people["operator"]
    when = {"condition": "above", "value": 2.0}
    for name in ("zebra", "ant"):
        rule = {"name": name, "metric": "step_time_s", "when": when}
        operator.post("/v1/rules", {"rules": [rule]}, expect=201)
    operator.post("/v1/rules/zebra/disable")
    assert [each["name"] for each in operator.get("/v1/rules")][-2:] == ["zebra", "ant"]


def test_prometheus_gets_the_rules_as_yaml_and_what_it_cannot_watch_is_named(here: Plane) -> None:
    full = {
        "name": "disk of '{{ x }}'",
        "metric": "memory_used_ratio",
        "when": {"condition": "above", "value": 0.8},
    }
    here.people["operator"].post("/v1/rules", {"rules": [full], "pack": "mine"}, expect=201)
    viewer = here.people["viewer"]
    answer = viewer.call("GET", "/v1/prometheus/rules")
    assert answer.headers["content-type"].startswith("application/yaml")
    assert '# Left out: "gradient not finite": it counts steps' in answer.text
    groups = yaml.safe_load(answer.text)["groups"]
    assert {"alert", "expr", "labels"} <= groups[1]["rules"][0].keys()
    mine = viewer.call("GET", "/v1/prometheus/rules", params={"pack": "mine"})
    assert [each["alert"] for each in yaml.safe_load(mine.text)["groups"][1]["rules"]] == [
        "disk of '{{ x }}'"
    ]
    nobody = viewer.call("GET", "/v1/prometheus/rules", params={"pack": "none"})
    assert (nobody.status_code, nobody.json()["code"]) == (404, "not_found")
