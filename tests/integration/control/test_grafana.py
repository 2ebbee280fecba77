"""Boards and annotations through the real client library, to a server that knows only the published
API.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from control.db import history, tables
from control.db.history import Recorded
from control.db.sql.engine import Database
from control.grafana.boards import BOARDS
from control.grafana.errands import GrafanaErrands
from control.grafana.publish import publish
from control.grafana.server import Grafana, connect
from tests.fakes.grafana import TOKEN, FakeGrafana, serving
from tests.integration.control.conftest import FakeClock
from tests.integration.control.scene import Scene
from trainmaster.errors import ForbiddenError, UnavailableError, UserError

PROMETHEUS = "http://prometheus:9090"


@pytest.fixture
def there() -> Iterator[FakeGrafana]:
    with serving(FakeGrafana()) as grafana:
        yield grafana


@pytest.fixture
def grafana(there: FakeGrafana) -> Grafana:
    return connect(there.url, TOKEN)


def test_everything_is_published_once(there: FakeGrafana, grafana: Grafana):
    assert len(publish(grafana, PROMETHEUS)) == 2 + len(BOARDS)
    assert set(there.boards) == {board.uid for board in BOARDS}
    assert there.datasources["trainmaster-prometheus"]["url"] == PROMETHEUS
    before = list(there.writes)
    assert publish(grafana, PROMETHEUS) == []
    assert there.writes == before


def test_what_somebody_changed_is_put_right_and_nothing_else(there: FakeGrafana, grafana: Grafana):
    publish(grafana, PROMETHEUS)
    there.boards["trainmaster-run"]["panels"][0]["title"] = "Zustand"
    assert publish(grafana, PROMETHEUS) == ["the board 'Trainmaster: run'"]
    assert publish(grafana, "http://elsewhere:9090") == ["the data source"]
    assert there.datasources["trainmaster-prometheus"]["url"] == "http://elsewhere:9090"


def test_a_refusal_names_what_to_mend(there: FakeGrafana):
    with pytest.raises(ForbiddenError, match="TRAINMASTER_GRAFANA_TOKEN_FILE"):
        publish(connect(there.url, "wrong"), PROMETHEUS)


def test_a_server_that_fails_or_is_away_is_tried_again_later(there: FakeGrafana, grafana: Grafana):
    there.failing = 503
    with pytest.raises(UnavailableError):
        publish(grafana, PROMETHEUS)
    with pytest.raises(UnavailableError):
        publish(connect("http://127.0.0.1:9", TOKEN), PROMETHEUS)


@pytest.mark.parametrize("url", ["grafana:3000", "ftp://a", "http://", "http://me:secret@host", ""])
def test_what_is_no_address_is_refused(url: str):
    with pytest.raises(UserError, match="is not the address of a Grafana"):
        connect(url, TOKEN)


@pytest.fixture
def scene(db: Database, clock: FakeClock) -> Scene:
    found = Scene(db, clock)
    found.submit()
    return found


def tell(scene: Scene, run: str, kind: str, because: str) -> None:
    with scene.db.write() as connection:
        history.record_all(
            connection, [Recorded(scene.clock.now(), kind, "control", because, run=run)]
        )


def test_each_event_is_annotated_once_whoever_leads(
    scene: Scene, clock: FakeClock, there: FakeGrafana, grafana: Grafana
):
    [run] = [row["id"] for row in scene.rows(tables.runs)]
    tell(scene, run, "alert_firing", "long ago")
    first = GrafanaErrands(scene.db, clock, grafana, PROMETHEUS)
    first.annotate_events()
    assert there.annotations == [], "what was before the first look is left alone"
    tell(scene, run, "run_starting", "Goes back to <b>step 40</b> {{ $labels.x }}")
    tell(scene, run, "checkpoint_trusted", "not of interest here")
    first.annotate_events()
    assert there.annotations == [], "numbers of other runs may still come in between"
    clock.pass_s(6)
    first.annotate_events()
    first.annotate_events()
    [note] = there.annotations
    assert note["text"] == "Goes back to &lt;b&gt;step 40&lt;/b&gt; {{ $labels.x }}"
    assert {"trainmaster", f"run:{run}", "run_starting"} <= set(note["tags"])

    tell(scene, run, "run_succeeded", "All steps are done.")
    clock.pass_s(6)
    GrafanaErrands(scene.db, clock, grafana, PROMETHEUS).annotate_events()
    assert [each["text"] for each in there.annotations][1:] == ["All steps are done."]


def test_an_annotation_that_fails_comes_first_the_next_time(
    scene: Scene, clock: FakeClock, there: FakeGrafana, grafana: Grafana
):
    [run] = [row["id"] for row in scene.rows(tables.runs)]
    errands = GrafanaErrands(scene.db, clock, grafana, PROMETHEUS)
    errands.annotate_events()
    tell(scene, run, "alert_firing", "one")
    tell(scene, run, "alert_resolved", "two")
    clock.pass_s(6)
    there.failing = 500
    with pytest.raises(UnavailableError):
        errands.annotate_events()
    there.failing = None
    errands.annotate_events()
    assert [each["text"] for each in there.annotations] == ["one", "two"]
