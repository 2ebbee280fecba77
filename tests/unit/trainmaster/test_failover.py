"""Of several control planes the client asks the next when one is away, and asks twice only what may
be asked twice.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import httpx
import pytest

from trainmaster.addresses import HOME_AGAIN_S, Rota
from trainmaster.client import Client
from trainmaster.errors import ConflictError, UnavailableError, UserError
from trainmaster.wire import Sync

ADDRESSES = ("http://a:1", "http://b:2", "http://c:3")
Plane = Callable[[httpx.Request], httpx.Response]


def works(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, json={"from": request.url.host})


def gone(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


def nowhere(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectTimeout("no route", request=request)


def killed(request: httpx.Request) -> httpx.Response:
    raise httpx.RemoteProtocolError("disconnected without an answer", request=request)


def silent(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadTimeout("slow", request=request)


def refusing(status: int, code: str) -> Plane:
    return lambda request: httpx.Response(status, json={"code": code, "detail": f"{code}!"})


class Planes:
    """Three control planes that behave as told, and remember who was asked."""

    def __init__(self, a: Plane, b: Plane = works, c: Plane = works) -> None:
        self.planes = {"a": a, "b": b, "c": c}
        self.asked: list[str] = []
        self.client = Client(
            " , ".join(ADDRESSES), "secret", transport=httpx.MockTransport(self._answer)
        )

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.host)
        return self.planes[request.url.host](request)


SYNC = Sync(boot="b", version="1", sent_at=datetime(2026, 1, 1, tzinfo=UTC), address="h", slots=1)
KEYED = {"kind": "pause", "idempotency_key": "k"}


@pytest.mark.parametrize("trouble", [gone, nowhere, killed, silent, refusing(503, "database")])
def test_what_may_be_asked_twice_is_asked_of_the_next(trouble: Plane):
    planes = Planes(trouble)
    assert planes.client.get("/v1/runs") == {"from": "b"}
    assert planes.client.post("/v1/runs", KEYED) == {"from": "b"}
    assert planes.client.post("/v1/runs", {}, headers={"Idempotency-Key": "k"}) == {"from": "b"}
    assert planes.client.sync("n1", SYNC).cursors == {}
    assert planes.asked == ["a", "b", "b", "b", "b"], "it stays with the one that answered"


@pytest.mark.parametrize("trouble", [gone, nowhere, refusing(503, "draining")])
def test_what_may_not_is_asked_of_the_next_when_it_cannot_have_been_looked_at(trouble: Plane):
    planes = Planes(trouble)
    assert planes.client.post("/v1/tokens", {"role": "viewer"}) == {"from": "b"}
    assert planes.asked == ["a", "b"]


@pytest.mark.parametrize("trouble", [killed, silent, refusing(503, "database")])
def test_what_may_not_be_asked_twice_is_not(trouble: Plane):
    planes = Planes(trouble)
    for ask in (
        lambda: planes.client.post("/v1/tokens", {"role": "viewer"}),
        lambda: planes.client.put("/v1/rules/x", {}),
        lambda: planes.client.delete("/v1/tokens/1"),
    ):
        with pytest.raises(UnavailableError):
            ask()
    assert planes.asked == ["a", "a", "a"]


def test_a_refusal_is_an_answer():
    planes = Planes(refusing(409, "stale_version"))
    with pytest.raises(ConflictError):
        planes.client.post("/v1/runs/r1/requests", KEYED)
    assert planes.asked == ["a"]


def test_when_nobody_answers_each_is_named_with_its_trouble():
    planes = Planes(gone, refusing(503, "database"), killed)
    with pytest.raises(UnavailableError) as caught:
        planes.client.get("/v1/runs")
    assert planes.asked == ["a", "b", "c"]
    for part in ("http://a:1 is out of reach: refused", "database!", "http://c:3"):
        assert part in caught.value.message
    planes.planes["c"] = works
    assert planes.client.get("/v1/runs") == {"from": "c"}


def test_slowness_is_tried_elsewhere_once_since_it_may_be_the_databases():
    planes = Planes(silent, silent, works)
    with pytest.raises(UnavailableError):
        planes.client.get("/v1/runs")
    assert planes.asked == ["a", "b"]


def test_a_sync_waits_less_where_there_are_others():
    waited: list[float] = []

    def look(request: httpx.Request) -> httpx.Response:
        waited.append(request.extensions["timeout"]["read"])
        return works(request)

    Planes(look).client.sync("n1", SYNC)
    Client("http://a", "t", transport=httpx.MockTransport(look)).sync("n1", SYNC)
    assert waited == [4.0, 10.0]


def test_callers_of_different_names_begin_at_different_addresses_and_each_always_at_the_same():
    first = [Rota(ADDRESSES, name=f"node-{number}").order()[0] for number in range(300)]
    assert {first.count(address) > 60 for address in ADDRESSES} == {True}
    assert first == [Rota(ADDRESSES, name=f"node-{number}").order()[0] for number in range(300)]
    assert Rota(ADDRESSES).order() == list(ADDRESSES)


def test_after_a_while_the_first_choice_is_tried_again():
    now = [0.0]
    rota = Rota(ADDRESSES, monotonic=lambda: now[0])
    rota.answered("http://c:3")
    assert rota.order() == ["http://c:3", "http://a:1", "http://b:2"]
    now[0] = HOME_AGAIN_S
    assert rota.order()[0] == "http://a:1"
    rota.answered("http://b:2")
    assert rota.order()[0] == "http://b:2", "it was away still: not before another while"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("http://a:1,b:2", "'b:2'"),
        ("http://a:1,,http://c:3", "''"),
        ("http://a:1;http://b:2", "http://a:1;http://b:2"),
        ("http://a:99999999,http://b:2", "'http://a:99999999'"),
        (f"http://a,http://{'b' * 64}", "b" * 64),
    ],
)
def test_a_bad_address_among_several_is_named(text: str, named: str):
    with pytest.raises(UserError) as caught:
        Client(text)
    assert named in caught.value.message
    assert caught.value.code == "bad_url"


def test_the_same_address_twice_is_one():
    planes = Client("http://a:1, http://a:1/", "t", transport=httpx.MockTransport(gone))
    assert planes.url == "http://a:1"
    with pytest.raises(UnavailableError, match="http://a:1 is out of reach"):
        planes.get("/v1/runs")
