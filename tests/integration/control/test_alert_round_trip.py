"""A rule in SQL, exported to a real Prometheus, comes back by way of a real Alertmanager."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from control.clock import SystemClock
from control.db.sql.engine import Database
from control.prometheus.promql import KEEP_FIRING_FOR
from tests.integration.control.api import FakeNode, Plane, plane
from tests.integration.control.scene import Scene
from tests.integration.control.scraped import Rank, scrape_config, served
from tests.services.alertmanager import StartAlertmanager
from tests.services.planes import until
from tests.services.prometheus import StartPrometheus
from trainmaster.home import Home

pytestmark = pytest.mark.prometheus

RULE = {
    "name": "loss beyond ten",
    "metric": "loss",
    "when": {"condition": "above", "value": 10},
    "for": {"steps": 1},
    "severity": "critical",
    "mode": "act",
    "actions": [{"action": "checkpoint"}],
}


@pytest.fixture
def here(sqlite_template: Path, tmp_path: Path) -> Iterator[Plane]:
    path = tmp_path / "trainmaster.db"
    path.write_bytes(sqlite_template.read_bytes())
    db = Database(f"sqlite:///{path}")
    with plane(db, Home(tmp_path / "home"), SystemClock()) as found:
        yield found
    db.close()


@pytest.fixture
def address(here: Plane) -> Iterator[str]:
    with served(here) as found:
        yield found


@pytest.fixture
def scene(here: Plane) -> Scene:
    FakeNode(here.as_node("n1")).turn()
    found = Scene(here.db, SystemClock())
    found.submit()
    found.begin()
    found.decide(state="running")
    return found


@pytest.fixture
def rank(scene: Scene) -> Iterator[Rank]:
    found = Rank(scene.run)
    yield found
    found.stop()


def prometheus_config(address: str, alertmanager: str, token: str) -> dict[str, Any]:
    return {
        **scrape_config(address, token),
        "rule_files": ["rules.yml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
    }


def alertmanager_config(address: str, token: str) -> dict[str, Any]:
    webhook = {
        "url": f"http://{address}/v1/alertmanager",
        "send_resolved": True,
        "http_config": {"authorization": {"type": "Bearer", "credentials": token}},
    }
    # It repeats itself twice a second here, where hours are usual.
    route = {
        "receiver": "trainmaster",
        "group_by": ["alertname", "run"],
        "group_wait": "100ms",
        "group_interval": "200ms",
        "repeat_interval": "500ms",
    }
    return {
        "route": route,
        "receivers": [{"name": "trainmaster", "webhook_configs": [webhook]}],
    }


def test_a_rule_fires_in_prometheus_comes_back_with_its_action_and_resolves(
    here: Plane,
    address: str,
    scene: Scene,
    rank: Rank,
    prometheus: StartPrometheus,
    alertmanager: StartAlertmanager,
):
    operator, viewer = here.people["operator"], here.people["viewer"]
    assert operator.token is not None
    assert viewer.token is not None
    operator.post("/v1/rules", {"rules": [RULE], "pack": "second-eyes"})
    exported = viewer.call("GET", "/v1/prometheus/rules", params={"pack": "second-eyes"}).text
    # Scrapes come thirty times as often as with the shipped files; on a busy machine some fail.
    exported = exported.replace(f"keep_firing_for: {KEEP_FIRING_FOR}", "keep_firing_for: 8s")

    def outside() -> list[dict[str, Any]]:
        shown = viewer.get("/v1/alerts", run=scene.run)
        return [alert for alert in shown if alert["source"] == "external"]

    def checkpoints_asked_for() -> list[dict[str, Any]]:
        shown = viewer.get(f"/v1/runs/{scene.run}/requests")
        return [request for request in shown if request["kind"] == "checkpoint"]

    router = alertmanager(alertmanager_config(address, operator.token))
    rank.ends_step(1, loss=2.5)
    node = FakeNode(here.as_node("n1"), metrics_port=rank.port)
    with node.in_background():
        server = prometheus(
            prometheus_config(address, router.address, viewer.token),
            files={"rules.yml": exported},
            # After a restart Alertmanager knows what it is told again.
            arguments=["--rules.alert.resend-delay=500ms"],
        )
        until(lambda: server.query("trainmaster:loss:run"), what="the recorded loss")
        assert outside() == []

        rank.ends_step(2, loss=1e4)
        [alert] = until(outside, what="the alert from outside")
        assert (alert["rule"], alert["state"], alert["run"]) == (RULE["name"], "firing", scene.run)
        assert (alert["severity"], alert["action"]) == ("critical", "checkpoint")
        [asked] = checkpoints_asked_for()
        assert alert["outcome"] == f"asked for: checkpoint (request {asked['id']})"

        until(lambda: router.delivered() >= 3, what="repeated messages")
        router.restart()
        until(lambda: router.delivered() >= 2, what="messages after the restart")
        assert [each["id"] for each in outside()] == [alert["id"]]
        assert checkpoints_asked_for() == [asked]

        rank.answers = False
        until(lambda: server.query("up == 0"), what="a scrape that fails")
        rank.answers = True
        until(lambda: server.query("trainmaster:loss:run"), what="the recorded loss again")
        assert [each["state"] for each in outside()] == ["firing"]

        rank.ends_step(3, loss=2.4)
        until(lambda: outside()[0]["state"] == "resolved", what="the alert to be resolved")
    assert [each["id"] for each in outside()] == [alert["id"]]
    assert len(checkpoints_asked_for()) == 1
    kinds = [event["kind"] for event in viewer.get(f"/v1/runs/{scene.run}/events")]
    told = [kind for kind in kinds if kind.startswith("external_alert")]
    assert told == ["external_alert_firing", "external_alert_resolved"]
