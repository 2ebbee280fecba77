"""What Prometheus reads of the control plane: valid in each format, whatever people call things."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import update

from control.db import tables
from control.db.fleet import chores
from control.db.sql.engine import Database
from control.reconciler import Reconciler
from control.vitals import OUTCOMES
from tests.integration.control.api import SPEC, FakeNode, Plane, plane
from tests.integration.control.conftest import FakeClock
from tests.services.private_server import absent
from trainmaster.home import Home

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"


@pytest.fixture
def here(sqlite_template: Path, tmp_path: Path, clock: FakeClock) -> Iterator[Plane]:
    path = tmp_path / "trainmaster.db"
    path.write_bytes(sqlite_template.read_bytes())
    db = Database(f"sqlite:///{path}")
    with plane(db, Home(tmp_path / "home"), clock) as found:
        yield found
    db.close()


def scrape(here: Plane, accept: str = "") -> Any:
    headers = {"Authorization": f"Bearer {here.people['viewer'].token}", "Accept": accept}
    answer = here.http.get("/metrics", headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Return (name, label values in the order of their names) -> value."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def submit(here: Plane, name: str) -> Any:
    node = FakeNode(here.as_node("n1"))
    with node.in_background():
        return here.people["operator"].call("POST", "/v1/runs", {"spec": {**SPEC, "name": name}})


@pytest.mark.prometheus
def test_x_expo02_whatever_a_run_is_called_the_page_is_valid_and_other_series_stay(here: Plane):
    if shutil.which("promtool") is None:
        absent("promtool")
    FakeNode(here.as_node("n1")).turn()
    first = submit(here, "plain").json()["id"]
    quiet = ("trainmaster_run_state", first, "queued")
    before = samples(scrape(here).text)[quiet]
    accepted = [
        submit(here, name).status_code
        for name in ('a "quoted" run', "火箭 🚀", "{{ $labels.run }}")
    ]
    assert accepted == [201, 201, 201]
    for name in ("back\\slash", "line\nfeed", "nul\x00", "surrogate \ud800"):
        # As escapes: JSON can carry a lone surrogate in no other way.
        body = json.dumps({"spec": {**SPEC, "name": name}})
        headers = {"Authorization": f"Bearer {here.people['operator'].token}"}
        refused = here.http.post("/v1/runs", content=body, headers=headers)
        assert refused.status_code in {400, 422}, name
    page = scrape(here)
    found = samples(page.text)
    assert found[quiet] == before
    assert (
        len([key for key in found if key[0] == "trainmaster_run_state" and key[2] == "queued"]) == 4
    )
    assert "quoted" not in page.text, "labels hold ids alone"
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=page.text, capture_output=True, text=True
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_x_expo04_openmetrics_ends_with_its_mark_and_the_older_text_has_none(here: Plane):
    older, newer = scrape(here), scrape(here, OPENMETRICS)
    assert older.headers["content-type"].startswith("text/plain")
    assert "# EOF" not in older.text
    assert newer.headers["content-type"].startswith("application/openmetrics-text")
    assert newer.text.endswith("# EOF\n")
    # There are no exemplars; a comment mark behind a value would be one.
    assert not any(" # " in line for line in newer.text.splitlines() if line[0] != "#")
    names = {family.name for family in openmetrics.text_string_to_metric_families(newer.text)}
    assert names >= {"trainmaster_run_state", "trainmaster_control_turn_duration_seconds"}


def test_a_control_plane_tells_of_its_loop_its_ingest_and_its_queues(here: Plane, clock: FakeClock):
    shell = here.http.app.state.shell  # type: ignore[attr-defined]
    FakeNode(here.as_node("n1")).turn()
    run = submit(here, "alpha").json()["id"]
    clock.pass_s(40)
    with here.db.write() as connection:
        connection.execute(
            update(tables.runs)
            .where(tables.runs.c.id == run)
            .values(next_look_at=clock.now() - timedelta(seconds=40))
        )
        chores.ask(connection, "verify", {"location": "file:///c"}, run=run, now=clock.now())
    here.people["operator"].post(f"/v1/runs/{run}/requests", {"kind": "stop"})
    clock.pass_s(5)
    late = samples(scrape(here).text)
    assert late["trainmaster_queue_oldest_seconds", "requests"] == 5
    assert late["trainmaster_queue_length", "requests"] == 1
    assert late["trainmaster_queue_oldest_seconds", "turns"] >= 5
    assert late["trainmaster_queue_length", "chores"] == 1
    assert late["trainmaster_queue_oldest_seconds", "notifications"] == 0
    assert late[("trainmaster_control_leads",)] == 0
    assert late[("trainmaster_control_syncs_total",)] >= 1

    Reconciler(here.db, clock, up_since=clock.now(), vitals=shell.vitals).tick()
    told = samples(scrape(here).text)
    assert told["trainmaster_control_turns_total", "changed"] >= 1
    assert told[("trainmaster_control_turn_duration_seconds_count",)] == sum(
        told["trainmaster_control_turns_total", outcome] for outcome in OUTCOMES
    )
    assert told["trainmaster_queue_length", "requests"] == 0
    assert told["trainmaster_queue_oldest_seconds", "turns"] == 0


def test_periodic_work_is_counted_by_how_it_ended(
    sqlite_template: Path, tmp_path: Path, clock: FakeClock
):
    path = tmp_path / "trainmaster.db"
    path.write_bytes(sqlite_template.read_bytes())
    db = Database(f"sqlite:///{path}")
    with plane(db, Home(tmp_path / "home"), clock, leads=True) as leading:
        key = ("trainmaster_control_work_total", "done", "tick")
        found = samples(scrape(leading).text)
        while found.get(key, 0) < 2:
            found = samples(scrape(leading).text)
        assert found["trainmaster_control_work_total", "failed", "tick"] == 0
        assert found["trainmaster_control_work_seconds_total", "tick"] > 0
        assert found[("trainmaster_control_leads",)] == 1
    db.close()
