"""The dashboard's own metrics: what is counted, and who may read it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.testclient import TestClient

from dashboard import scrapes
from dashboard.vitals import Vitals
from trainmaster.errors import ForbiddenError, UnavailableError
from trainmaster.readers import Readers

ROLES = {"viewers": "viewer", "agents": "agent"}


@pytest.fixture
def vitals() -> Vitals:
    ticks = iter(range(100))
    return Vitals(lambda: float(next(ticks)))


@pytest.fixture
def page(vitals: Vitals) -> Iterator[TestClient]:
    readers = Readers(ROLES.get, own=None)
    with TestClient(Starlette(routes=scrapes.routes(lambda: readers, vitals))) as client:
        yield client


def samples(text: str) -> dict[tuple[str, str], float]:
    return {
        (sample.name, sample.labels.get("outcome", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_pages_and_reads_are_counted_however_they_end(page: TestClient, vitals: Vitals):
    with vitals.page(), vitals.read():
        pass
    for error in (UnavailableError("away"), ForbiddenError("no")):
        with pytest.raises(type(error)), vitals.page(), vitals.read():
            raise error
    answer = page.get("/metrics", headers={"Authorization": "Bearer viewers"})
    found = samples(answer.text)
    assert found["trainmaster_dashboard_page_duration_seconds_count", ""] == 3
    assert found["trainmaster_dashboard_read_duration_seconds_sum", ""] == 3.0
    reads = "trainmaster_dashboard_reads_total"
    assert [found[reads, each] for each in ("answered", "refused", "unavailable")] == [1, 1, 1]


def test_openmetrics_is_given_to_whoever_asks_for_it(page: TestClient):
    headers = {"Authorization": "Bearer viewers", "Accept": "application/openmetrics-text"}
    answer = page.get("/metrics", headers=headers)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


@pytest.mark.parametrize(("token", "status"), [("", 401), ("nobody's", 401), ("agents", 403)])
def test_only_whom_the_control_plane_lets_read_may_read(page: TestClient, token: str, status: int):
    answer = page.get("/metrics", headers={"Authorization": f"Bearer {token}"} if token else {})
    assert answer.status_code == status
    assert ("www-authenticate" in answer.headers) == (status == 401)
