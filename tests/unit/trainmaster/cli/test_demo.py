"""The example run is submitted once, however often `up --demo` is started."""

import pytest

from tests.fakes.api import FakeApi
from trainmaster.cli.demo import ensure_demo

CREATED = {"id": "r2", "name": "stdlib-gpt", "state": "queued"}


def run(state: str, name: str = "stdlib-gpt") -> dict:
    return {"id": "r1", "name": name, "state": state}


@pytest.mark.parametrize(
    "runs", [[], [run("succeeded")], [run("failed"), run("stopped")], [run("running", "other")]]
)
def test_it_is_submitted_while_none_is_under_way(runs):
    api = FakeApi({"GET /v1/runs": [runs], "POST /v1/runs": [CREATED]})
    assert ensure_demo(api) == (CREATED, True)
    assert api.bodies("POST", "/v1/runs")[0]["spec"]["name"] == "stdlib-gpt"


@pytest.mark.parametrize("state", ["queued", "running", "recovering", "paused", "held"])
def test_one_that_is_not_over_is_followed_instead(state):
    api = FakeApi({"GET /v1/runs": [[run("succeeded"), run(state), run("running", "other")]]})
    assert ensure_demo(api) == (run(state), False)
