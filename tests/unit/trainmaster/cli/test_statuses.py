"""Exit statuses, and where what is said goes."""

import pytest

from tests.unit.trainmaster.cli.command import command
from trainmaster.errors import (
    ConflictError,
    ForbiddenError,
    NotFoundError,
    TrainmasterError,
    UnauthenticatedError,
    UnavailableError,
)

RUN = {"id": "r1", "name": "tiny", "state": "running", "step": 3, "generation": 1}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (TrainmasterError("it broke"), 1),
        (NotFoundError("there is no run 'r1'"), 2),
        (UnavailableError("out of reach"), 3),
        (ForbiddenError("only an admin may"), 4),
        (UnauthenticatedError("unknown token"), 4),
        (ConflictError("not now"), 4),
    ],
)
def test_an_error_is_one_sentence_on_stderr_and_its_own_status(error, status):
    done = command("show", "r1", "--json", answers={"GET /v1/runs/r1": [error]})
    assert (done.status, done.stdout, done.stderr) == (status, "", f"{error.message}\n")


def test_json_is_the_one_document_on_stdout():
    done = command("show", "r1", "--json", answers={"GET /v1/runs/r1": [RUN]})
    assert (done.status, done.json, done.stderr) == (0, RUN, "")


@pytest.mark.parametrize(
    ("state", "told"),
    [("running", "running"), ("pausing", "pausing, wanted paused"), ("succeeded", "succeeded")],
)
def test_what_a_run_is_wanted_to_do_is_told_while_it_is_on_its_way(state, told):
    desired = "paused" if state == "pausing" else "running"
    run = {**RUN, "state": state, "desired": desired}
    done = command("show", "r1", answers={"GET /v1/runs/r1": [run]})
    [line] = [line for line in done.stdout.splitlines() if line.startswith("state")]
    assert line.split(maxsplit=1)[1] == told


@pytest.mark.parametrize("words", [["nosuch"], ["show"], ["series", "r1"], ["logs", "r1"]])
def test_bad_usage_is_status_2(words, capsys):
    assert command(*words).status == 2
    assert "Usage: trainmaster" in capsys.readouterr().err


@pytest.mark.parametrize("run", ["", ".", "..", "a\0b"])
def test_an_id_that_no_run_can_have_is_not_found_without_asking(run):
    done = command("show", run)
    assert (done.status, done.api.asked) == (2, [])


def test_an_id_cannot_leave_its_segment_of_the_path():
    done = command("show", "../tokens?x=1#y")
    assert done.api.asked == [("GET", "/v1/runs/..%2Ftokens%3Fx%3D1%23y", {})]


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (["runs"], "/v1/runs"),
        (["events", "r1"], "/v1/runs/r1/events"),
        (["alerts"], "/v1/alerts"),
        (["incidents"], "/v1/incidents"),
        (["checkpoints", "r1"], "/v1/runs/r1/checkpoints"),
        (["checkpoints", "r1", "--would-retire"], "/v1/runs/r1/retention"),
        (["nodes"], "/v1/nodes"),
        (["rules", "list"], "/v1/rules"),
        (["token", "list"], "/v1/tokens"),
        (["audit"], "/v1/audit"),
    ],
)
def test_an_empty_list_is_an_empty_array_and_a_sentence(words, path):
    assert command(*words, "--json", answers={f"GET {path}": [[]]}).json == []
    assert command(*words, answers={f"GET {path}": [[]]}).stdout.strip()


def test_events_stand_in_the_order_in_which_things_happened():
    late = {"id": 1, "at": "2030-01-01T00:00:01Z", "kind": "rank_ready"}
    early = {"id": 2, "at": "2030-01-01T00:00:00.5Z", "kind": "rank_started"}
    done = command("events", "r1", "--json", answers={"GET /v1/runs/r1/events": [[late, early]]})
    assert done.json == [early, late]
