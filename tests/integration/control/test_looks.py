"""A look at a run: all that its page shows in one answer, without what the reader has already."""

from pathlib import Path

from control.db.sql.engine import Database
from tests.integration.control.api import plane
from tests.integration.control.conftest import FakeClock
from tests.integration.control.scene import Scene
from trainmaster.home import Home


def test_a_look_tells_what_each_address_tells_and_leaves_out_what_is_known(
    db: Database, clock: FakeClock, tmp_path: Path
) -> None:
    scene = Scene(db, clock)
    scene.sync()
    run = scene.submit()
    scene.begin()
    with plane(db, Home(tmp_path / "home"), clock) as here:
        viewer = here.people["viewer"]
        wanted = {"series": [{"metric": "loss"}]}
        told = viewer.post(f"/v1/runs/{run}/look", {"series": [wanted]})
        parts = {name: each["answer"] for name, each in told["parts"].items()}
        newest = parts.pop("newest_event")
        assert newest == viewer.get(f"/v1/runs/{run}/events")[-1]["id"]
        addresses = {"run": f"/v1/runs/{run}", "nodes": "/v1/nodes"}
        for name, answer in parts.items():
            assert answer == viewer.get(addresses.get(name, f"/v1/runs/{run}/{name}")), name
        assert told["series"] == [viewer.post(f"/v1/runs/{run}/series", wanted)]
        known = {name: each["version"] for name, each in told["parts"].items()}
        again = viewer.post(f"/v1/runs/{run}/look", {"known": known})
        assert all("answer" not in each for each in again["parts"].values())
        here.people["operator"].post(f"/v1/runs/{run}/requests", {"kind": "stop"})
        after = viewer.post(f"/v1/runs/{run}/look", {"known": known})["parts"]
        assert after["requests"]["answer"] == viewer.get(f"/v1/runs/{run}/requests")
        assert "answer" not in after["alerts"]
        viewer.post("/v1/runs/none/look", {}, expect=404)
