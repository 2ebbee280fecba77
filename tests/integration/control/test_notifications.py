"""The outbox and its channels: Apprise itself, to services on this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from control.channel_file import ChannelSpec
from control.db import outbox, tables
from control.db.sql.engine import Database
from control.decision import NewEvent
from control.notify.sender import GIVE_UP_AFTER, Sender, pause_s
from tests.integration.control.api import plane
from tests.integration.control.conftest import FakeClock
from tests.integration.control.scene import Scene
from trainmaster.home import Home
from trainmaster.notification import ChannelKind
from trainmaster.testing.channel_contract import HOSTILE, ChannelContract


class Service:
    """A service that notices are posted to."""

    def __init__(self) -> None:
        self.status = 200
        self.received: list[dict[str, Any]] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if service.status == 200:
                    service.received.append(json.loads(body))
                self.send_response(service.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"json://user:SECRET@127.0.0.1:{self._server.server_port}/hook"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def service() -> Iterator[Service]:
    found = Service()
    yield found
    found.close()


@pytest.fixture
def scene(db: Database, clock: FakeClock) -> Scene:
    found = Scene(db, clock)
    found.submit()
    return found


def channel(name: str, url: str, **more: Any) -> ChannelSpec:
    return ChannelSpec(name=name, url=SecretStr(url), **more)


def fire(scene: Scene, rule: str = "r", step: int = 7, severity: str = "warning") -> None:
    data = {"rule": rule, "scope": "run", "first_bad_step": step, "severity": severity}
    scene.decide(events=(NewEvent("alert_firing", f"{rule}: bad since step {step}.", data=data),))


def test_an_alert_is_told_once_however_often_it_is_written(
    scene: Scene, clock: FakeClock, service: Service
) -> None:
    sender = Sender(scene.db, clock, [channel("ops", service.url)])
    fire(scene)
    fire(scene)
    sender.send_notices()
    sender.send_notices()
    [told] = service.received
    assert told["title"].endswith(": r fires")
    assert scene.run in told["message"]
    [row] = scene.rows(tables.notifications)
    assert (row["state"], row["deliveries"]["ops"]["attempts"]) == ("sent", 1)


def test_what_passes_is_tried_again_and_what_does_not_is_not(
    scene: Scene, clock: FakeClock, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    sender = Sender(scene.db, clock, [channel("ops", service.url)])
    service.status = 503
    fire(scene)
    sender.send_notices()
    [row] = scene.rows(tables.notifications)
    assert row["state"] == "pending"
    assert "503" in row["deliveries"]["ops"]["because"]
    service.status = 200
    sender.send_notices()
    assert service.received == [], "not before its time"
    clock.pass_s(pause_s(1) + 1)
    sender.send_notices()
    assert len(service.received) == 1

    service.status = 403
    fire(scene, step=9)
    sender.send_notices()
    clock.pass_s(7200)
    service.status = 200
    sender.send_notices()
    row = scene.rows(tables.notifications)[-1]
    assert (row["state"], row["deliveries"]["ops"]["attempts"]) == ("failed", 1)
    assert len(service.received) == 1
    assert "SECRET" not in caplog.text + json.dumps(
        [r["deliveries"] for r in scene.rows(tables.notifications)]
    )


def test_a_service_that_stays_away_is_given_up_after_a_day(scene: Scene, clock: FakeClock) -> None:
    sender = Sender(scene.db, clock, [channel("ops", "json://127.0.0.1:9/")])
    fire(scene)
    sender.send_notices()
    [row] = scene.rows(tables.notifications)
    assert "could not be reached" in row["deliveries"]["ops"]["because"]
    clock.pass_s(GIVE_UP_AFTER.total_seconds() + 1)
    sender.send_notices()
    [row] = scene.rows(tables.notifications)
    assert row["state"] == "failed"
    assert "given up" in row["deliveries"]["ops"]["because"]


def test_each_channel_gets_what_is_meant_for_it(
    scene: Scene, clock: FakeClock, service: Service
) -> None:
    night = Service()
    try:
        sender = Sender(
            scene.db,
            clock,
            [
                channel("ops", service.url),
                channel("night", night.url, least_severity="critical", default=False),
            ],
        )
        fire(scene, "quiet", severity="info")
        fire(scene, "loud", severity="critical")
        data = {"action": "notify", "channels": ["night", "gone"], "severity": "warning"}
        scene.decide(events=(NewEvent("rule_acted", "Look at it.", data=data),))
        sender.send_notices()
        assert [each["title"].partition(": ")[2] for each in service.received] == ["loud fires"]
        assert [each["title"].partition(": ")[2] for each in night.received] == ["notice"]
        states = {row["title"]: row["state"] for row in scene.rows(tables.notifications)}
        assert states == {"quiet fires": "unsent", "loud fires": "sent", "notice": "failed"}
    finally:
        night.close()


def test_a_rule_that_fires_again_and_again_is_told_three_times_and_then_that(
    scene: Scene, clock: FakeClock
) -> None:
    for step in range(10):
        fire(scene, step=step)
        clock.pass_s(60)
    assert [row["kind"] for row in scene.rows(tables.notifications)] == [
        *["alert_firing"] * 3,
        "alert_flapping",
    ]
    clock.pass_s(3600)
    fire(scene, step=99)
    assert scene.rows(tables.notifications)[-1]["kind"] == "alert_firing"


def test_old_notices_are_forgotten_and_waiting_ones_are_not(scene: Scene, clock: FakeClock) -> None:
    fire(scene)
    clock.pass_s(timedelta(days=31).total_seconds())
    with scene.db.write() as connection:
        outbox.forget(connection, now=clock.now())
        assert outbox.counts(connection, now=clock.now())[0] == {"pending": 1}
    Sender(scene.db, clock, []).send_notices()
    with scene.db.write() as connection:
        outbox.forget(connection, now=clock.now())
    assert scene.rows(tables.notifications) == []


def test_a_channel_is_tried_from_the_api_and_its_address_is_not_shown(
    db: Database, clock: FakeClock, tmp_path: Path, service: Service
) -> None:
    channels = (channel("ops", service.url), channel("bad", "nonsense"))
    with plane(db, Home(tmp_path / "home"), clock, channels=channels) as here:
        ada = here.people["operator"]
        listed = here.people["viewer"].get("/v1/channels")
        assert [(each["name"], each["kind"]) for each in listed] == [
            ("ops", "json"),
            ("bad", "nonsense"),
        ]
        assert "SECRET" not in json.dumps(listed)
        assert ada.post("/v1/channels/ops/test") == {"name": "ops", "state": "sent"}
        assert service.received[-1]["title"] == "Trainmaster: a test"
        service.status = 401
        refused = ada.call("POST", "/v1/channels/ops/test")
        assert (refused.status_code, "SECRET" in refused.text) == (400, False)
        service.status = 500
        assert ada.call("POST", "/v1/channels/ops/test").status_code == 503
        assert ada.call("POST", "/v1/channels/bad/test").status_code == 400
        assert ada.call("POST", "/v1/channels/none/test").status_code == 404
        assert here.people["viewer"].call("POST", "/v1/channels/ops/test").status_code == 403


class TestAppriseKeepsTheContractOfThirdParties(ChannelContract):
    """Through the same door as anybody's channel."""

    bad_params = {"url": "nonsense"}

    @pytest.fixture(autouse=True)
    def _there(self, service: Service) -> None:
        type(self).good_params = {"url": service.url}
        self._service = service

    kind = ChannelKind("apprise", lambda params: _checked(params["url"]))

    def received(self) -> list[str]:
        return [each["title"] + each["message"] for each in self._service.received]


def _checked(url: str) -> Any:
    import apprise

    from control.notify.apprise_channel import AppriseChannel
    from trainmaster.errors import UserError

    if not apprise.Apprise().add(url):
        raise UserError("url: none that Apprise knows")
    return AppriseChannel("test", url)


def test_the_contract_uses_text_that_something_could_evaluate() -> None:
    assert "{{" in HOSTILE
