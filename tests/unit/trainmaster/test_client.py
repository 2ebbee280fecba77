"""The client against answers that need no socket."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime

import httpx
import pytest

from trainmaster.client import Client
from trainmaster.errors import (
    ConflictError,
    ForbiddenError,
    NotFoundError,
    SpecError,
    TrainmasterError,
    UnauthenticatedError,
    UnavailableError,
    UserError,
)
from trainmaster.facts import Batch, Columns, Event
from trainmaster.wire import Sync


def client(handler) -> Client:  # type: ignore[no-untyped-def]
    return Client("http://host:1", "secret", transport=httpx.MockTransport(handler))


def answering(status: int, body: object = None) -> Client:
    return client(lambda request: httpx.Response(status, json=body))


@pytest.mark.parametrize(
    "send",
    [
        lambda to: to.post("/v1/runs", {"why": "\udcff"}),
        lambda to: to.get("/v1/runs", tag="\udcff"),
    ],
    ids=["body", "query"],
)
def test_bytes_of_the_command_line_that_are_no_text_are_refused_before_they_are_sent(send):
    with pytest.raises(UserError, match=r"udcff.* holds bytes that are no UTF-8 text"):
        send(answering(200))


def test_an_event_with_a_file_name_that_is_no_utf8_is_told_all_the_same():
    data = {"because": "no such file: \udcff.txt", "files": ["\ud800"], "\udcfe": math.inf}
    event = Event(kind="rank_failed", at=datetime(2026, 1, 1, tzinfo=UTC), data=data)
    told = json.loads(event.encoded())["data"]
    assert told["because"] == "no such file: \\udcff.txt"
    assert (told["files"], told["\\udcfe"]) == (["\\ud800"], "Infinity")


def test_the_token_is_shown_and_empty_query_values_are_left_out():
    def handler(request: httpx.Request) -> httpx.Response:
        assert request.headers["Authorization"] == "Bearer secret"
        assert str(request.url) == "http://host:1/v1/runs?points=5"
        return httpx.Response(200, json=[1])

    assert client(handler).get("/v1/runs", points=5, rank=None) == [1]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, UserError),
        (401, UnauthenticatedError),
        (403, ForbiddenError),
        (404, NotFoundError),
        (409, ConflictError),
        (429, UnavailableError),
        (500, TrainmasterError),
        (502, UnavailableError),
        (503, UnavailableError),
    ],
)
def test_a_problem_document_comes_out_as_our_error(status: int, kind: type[TrainmasterError]):
    problem = {"title": "T", "detail": "what happened", "code": "some_code", "status": status}
    with pytest.raises(TrainmasterError, match="what happened") as caught:
        answering(status, problem).post("/v1/runs", {})
    assert type(caught.value) is kind
    assert caught.value.code == "some_code"


def test_problems_of_a_document_keep_path_and_line():
    problems = [{"path": "train.steps", "message": "is 0", "line": 4}, {"path": "", "message": "x"}]
    with pytest.raises(SpecError) as caught:
        answering(422, {"detail": "bad", "code": "bad_spec", "problems": problems}).post("/v1/runs")
    first, second = caught.value.problems
    assert (first.path, first.message, first.line) == ("train.steps", "is 0", 4)
    assert second.line is None


def test_an_answer_that_is_none_of_ours_is_still_an_error():
    page = client(lambda request: httpx.Response(503, text="<html>down</html>"))
    with pytest.raises(UnavailableError, match="answered 503"):
        page.get("/v1/runs")
    welcome = client(lambda request: httpx.Response(200, text="<html>hello</html>"))
    with pytest.raises(UnavailableError, match="does not answer as a control plane"):
        welcome.get("/v1/runs")


def test_trouble_on_the_way_is_unavailable():
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    def dawdle(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("slow")

    with pytest.raises(UnavailableError, match="out of reach"):
        client(refuse).get("/healthz")
    with pytest.raises(UnavailableError, match="in time"):
        client(dawdle).get("/healthz")


@pytest.mark.parametrize("url", ["", "8700", "ftp://host", "http://", "http://[::1"])
def test_an_address_that_is_none_is_refused_at_once(url: str):
    with pytest.raises(UserError):
        Client(url)


def test_a_token_that_cannot_be_one_is_refused_at_once():
    with pytest.raises(UserError):
        Client("http://host", "a\nb")


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_lacks_is_refused_with_its_place(number: float):
    body = {"kind": "restore", "args": {"lr_factor": number, "windows": [1.0, number]}}
    with pytest.raises(SpecError) as refused:
        answering(200, {}).post("/v1/runs/r1/requests", body)
    assert [each.path for each in refused.value.problems] == ["args.lr_factor", "args.windows[1]"]


def test_sync_carries_numbers_that_json_lacks():
    def handler(request: httpx.Request) -> httpx.Response:
        assert request.url.raw_path == b"/v1/nodes/n1/sync"
        body = json.loads(request.content)
        assert body["batches"][0]["samples"]["values"] == {"loss": ["NaN", None]}
        return httpx.Response(200, json={"cursors": {"s": 3}, "unknown": "ignored"})

    samples = Columns(steps=[1, 2], at=[1.0, 2.0], values={"loss": [float("nan"), None]})
    batch = Batch(stream="s", from_offset=0, to_offset=3, samples=samples)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    message = Sync(boot="b", version="1", sent_at=at, address="h", slots=1, batches=[batch])
    assert client(handler).sync("n1", message).cursors == {"s": 3}
    with pytest.raises(UnavailableError, match="cannot be read"):
        answering(200, {"cursors": 3}).sync("n1", message)


def test_deleting_something_answers_nothing():
    assert client(lambda request: httpx.Response(204)).delete("/v1/tokens/1") is None
