"""A run that comes with its checkpoints into a database that does not know it."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from control.clock import SystemClock
from control.db.sql.engine import Database
from tests.integration.control.api import SPEC, FakeNode, plane
from tests.integration.control.test_whole_run import until
from trainmaster.home import Home

ROOT = "file:///store/rab12"
LAYOUT = {
    "micro_batch": 1,
    "schedule": "1f1b",
    "pipelines": [{"layers": [2, 2], "micro_batches": 8, "nodes": ["gone", "gone"]}],
}


def found(generation: int, step: int, **changes: Any) -> dict[str, Any]:
    return {
        "generation": generation,
        "step": step,
        "location": f"{ROOT}/g{generation}-step{step}",
        "manifest_sha256": "sha256:" + f"{step:064d}",
        "bytes": 100,
        "files": 3,
        "layout": LAYOUT,
        **changes,
    }


def adoption(**changes: Any) -> dict[str, Any]:
    second = {"parent": "rab12-g1-s10", "skip": [[11, 12]]}
    checkpoints = [found(1, 5), found(1, 10), found(1, 15), found(2, 15, **second)]
    return {
        "run": "rab12",
        "root": ROOT,
        "spec": deepcopy(SPEC),
        "checkpoints": checkpoints,
        **changes,
    }


def test_an_adopted_run_is_stopped_with_its_lineage_and_goes_on_from_its_newest(
    db: Database, tmp_path: Path
) -> None:
    with plane(db, Home(tmp_path / "home"), SystemClock(), leads=True) as here:
        run = here.people["operator"].post("/v1/imports", adoption(), expect=201)
        assert (run["id"], run["name"], run["state"]) == ("rab12", "alpha", "stopped")
        assert [each["generation"] for each in run["attempts"]] == [1, 2]
        assert run["attempts"][1]["resumed_from_checkpoint"] == "rab12-g1-s10"
        assert run["attempts"][1]["skip"] == [[11, 12]]
        assert here.admin.get("/v1/audit")[-1]["action"] == "run_adopted"
        [event] = here.admin.get("/v1/runs/rab12/events")
        assert (event["kind"], event["data"]["checkpoints"]) == ("run_adopted", 4)

        here.people["operator"].post("/v1/runs/rab12/requests", {"kind": "resume"})
        node = FakeNode(here.as_node("n1"))
        assignment = until(lambda: node.turn().assignments, "an assignment")[0]
        assert assignment.generation > 2, "no number is given out twice"
        assert assignment.resume is not None
        assert assignment.resume.checkpoint == "rab12-g2-s15"
        assert assignment.resume.location == f"{ROOT}/g2-step15"
        assert assignment.skip == [(11, 12)]
        assert assignment.world_size == 2, "planned anew from the spec, on nodes that are there"
        marks = {
            each["id"]: each["abandoned"] for each in here.admin.get("/v1/runs/rab12/checkpoints")
        }
        assert marks["rab12-g1-s15"] is True, "it lies on the branch that generation 2 left"
        assert not any(marks[each] for each in ("rab12-g1-s5", "rab12-g1-s10", "rab12-g2-s15"))


@pytest.mark.parametrize(
    ("changes", "status", "what"),
    [
        ({"run": "../x"}, 422, "run"),
        ({"checkpoints": []}, 422, "checkpoints"),
        ({"checkpoints": [found(1, 5), found(1, 5)]}, 400, "two checkpoints at step 5"),
        ({"checkpoints": [found(1, 5, parent="other-g1-s2")]}, 400, "no checkpoint of rab12"),
        ({"checkpoints": [found(1, 5, location="file:///else/g1-step5")]}, 400, "does not lie in"),
        ({"checkpoints": [{**found(1, 5), "step": -1}]}, 422, "step"),
        ({"checkpoints": [{**found(1, 5), "step": 2**53}]}, 422, "step"),
        ({"checkpoints": [found(1, 5, manifest_sha256="md5:1")]}, 422, "manifest_sha256"),
        ({"spec": {"name": "x"}}, 422, "workload"),
        ({"root": "/not/a/url"}, 400, "root"),
    ],
)
def test_what_cannot_be_adopted_is_refused_by_name_and_nothing_is_stored(
    db: Database, tmp_path: Path, changes: dict[str, Any], status: int, what: str
) -> None:
    with plane(db, Home(tmp_path / "home"), SystemClock()) as here:
        answer = here.admin.call("POST", "/v1/imports", adoption(**changes))
        assert (answer.status_code, what in answer.text) == (status, True), answer.text
        assert here.admin.get("/v1/runs") == []


def test_a_run_is_adopted_once_and_by_an_operator(db: Database, tmp_path: Path) -> None:
    with plane(db, Home(tmp_path / "home"), SystemClock()) as here:
        assert here.people["viewer"].call("POST", "/v1/imports", adoption()).status_code == 403
        here.admin.post("/v1/imports", adoption(), expect=201)
        again = here.admin.call("POST", "/v1/imports", adoption())
        assert (again.status_code, again.json()["code"]) == (409, "already_known")
