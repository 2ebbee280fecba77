"""A real Prometheus finds agents through the control plane, and forgets what is over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from control.clock import SystemClock
from control.db.sql.engine import Database
from control.liveness.leases import LEASE_S
from tests.integration.control.api import FakeNode, Plane, plane
from tests.integration.control.scraped import Rank, scrape_config, served
from tests.services.planes import until
from tests.services.prometheus import PrometheusServer, StartPrometheus
from trainmaster.home import Home

pytestmark = pytest.mark.prometheus


class AheadClock(SystemClock):
    """The time, and what a test lets pass."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self.ahead_s)


@pytest.fixture
def clock() -> AheadClock:
    return AheadClock()


@pytest.fixture
def here(sqlite_template: Path, tmp_path: Path, clock: AheadClock) -> Iterator[Plane]:
    path = tmp_path / "trainmaster.db"
    path.write_bytes(sqlite_template.read_bytes())
    db = Database(f"sqlite:///{path}")
    with plane(db, Home(tmp_path / "home"), clock) as found:
        yield found
    db.close()


def nodes_seen(server: PrometheusServer, query: str) -> set[str]:
    return {each["metric"]["node"] for each in server.query(query)}


def test_agents_are_read_as_nodes_come_and_go_and_nothing_stays_of_what_is_over(
    here: Plane, clock: AheadClock, prometheus: StartPrometheus
) -> None:
    token = here.people["viewer"].token
    assert token is not None
    first, second = Rank("ra", "n1"), Rank("rb", "n2")
    with ExitStack() as stack:
        stack.callback(first.stop)
        stack.callback(second.stop)
        server = prometheus(scrape_config(stack.enter_context(served(here)), token))
        stack.enter_context(FakeNode(here.as_node("n1"), metrics_port=first.port).in_background())
        until(lambda: nodes_seen(server, "trainmaster_step") == {"n1"}, what="the first node")

        other = FakeNode(here.as_node("n2"), "n2", metrics_port=second.port)
        with other.in_background():
            until(lambda: nodes_seen(server, "trainmaster_step") == {"n1", "n2"}, what="both")

            first.ended_long_ago()
            until(lambda: nodes_seen(server, "trainmaster_step") == {"n2"}, what="an ended run")
            assert server.query('{run="ra"}') == []
            until(lambda: nodes_seen(server, "up == 1") == {"n1", "n2"}, what="both still read")

        clock.ahead_s = LEASE_S + 1
        until(lambda: nodes_seen(server, "up") == {"n1"}, what="a lost node to be left out")
        assert server.query('{node="n2"}') == []
        targets = server.get("/api/v1/targets")["activeTargets"]
        assert [each["labels"]["node"] for each in targets] == ["n1"]
