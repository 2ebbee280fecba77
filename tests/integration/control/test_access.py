"""Every route has a role, and the door keeps everybody to theirs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import Route

from control import rights
from control.api import sync
from control.api.door import MAX_LEVELS
from control.app import create_app
from control.db.sql.engine import Database
from control.settings import Settings
from tests.integration.control.api import Api, Plane, plane
from tests.integration.control.conftest import FakeClock
from trainmaster.home import Home


@pytest.fixture
def here(db: Database, tmp_path: Path, clock: FakeClock) -> Iterator[Plane]:
    with plane(db, Home(tmp_path / "home"), clock) as made:
        yield made


def routes_of(app: FastAPI) -> list[tuple[str, str]]:
    described = sync.described(app.openapi()["paths"])
    return [(verb.upper(), path) for path, verbs in described.items() for verb in verbs]


def filled(path: str) -> str:
    for name in ("run", "node", "checkpoint", "request", "name", "token"):
        path = path.replace("{" + name + "}", "x1")
    return path.replace("{step}", "1")


def test_every_route_is_in_the_table_and_every_entry_is_a_route(
    db: Database, tmp_path: Path, clock: FakeClock
) -> None:
    app = create_app(Settings(Home(tmp_path)), db, clock, leads=False)
    assert sorted(routes_of(app)) == sorted(rights.LEAST_ROLE)
    beyond = [each for each in app.routes if isinstance(each, Route | APIRoute)]
    assert all((next(iter(each.methods or ())), each.path) in rights.LEAST_ROLE for each in beyond)


def test_nobody_passes_without_a_token_but_where_it_is_open(here: Plane) -> None:
    nobody = Api(here.http, None)
    for (method, path), least in rights.LEAST_ROLE.items():
        answer = nobody.call(method, filled(path))
        assert (answer.status_code == 401) == (least != rights.OPEN), (method, path, answer.text)


@pytest.mark.parametrize("role", ["viewer", "operator", "admin", "agent"])
def test_each_role_passes_where_the_table_says_and_is_stopped_elsewhere(
    here: Plane, role: str
) -> None:
    who = here.as_node("x1") if role == "agent" else here.people[role]
    order = ["viewer", "operator", "admin"]
    for (method, path), least in rights.LEAST_ROLE.items():
        if (method, path) == ("DELETE", "/v1/logins/current"):
            continue
        if role == "agent":
            may = least in {rights.OPEN, rights.ANY, rights.AGENT}
        elif least == rights.AGENT:
            may = role == "admin"
        else:
            may = least in {rights.OPEN, rights.ANY} or order.index(role) >= order.index(least)
        answer = who.call(method, filled(path))
        assert (answer.status_code == 403) == (not may), (method, path, answer.text)
        if answer.status_code >= 400:
            assert answer.headers["content-type"] == "application/problem+json"
            assert set(answer.json()) >= {"type", "title", "status", "detail", "code"}
        assert answer.status_code < 500, (method, path, answer.text)


def test_a_number_beyond_what_is_counted_is_refused_wherever_one_is_asked_for(here: Plane) -> None:
    asked = [
        (path, each["name"])
        for path, verbs in here.http.app.openapi()["paths"].items()  # type: ignore[attr-defined]
        for each in verbs.get("get", {}).get("parameters", ())
        if each["in"] == "query" and '"integer"' in json.dumps(each["schema"])
    ]
    assert ("/v1/audit", "after") in asked
    for path, name in asked:
        query = {"metric": "loss", "rank": 0, name: 2**63}
        answer = here.admin.call("GET", filled(path), params=query)
        assert answer.status_code == 422, (path, name, answer.text)
        assert answer.json()["problems"][0]["path"] == name


def test_an_agents_token_speaks_for_its_own_node_alone(here: Plane) -> None:
    answer = here.as_node("n1").call("POST", "/v1/nodes/n2/sync", {})
    assert answer.status_code == 403
    assert "n1" in answer.json()["detail"]


def test_an_unknown_a_revoked_and_an_expired_token_are_refused(
    here: Plane, clock: FakeClock
) -> None:
    assert Api(here.http, "tm_nothing").call("GET", "/v1/runs").status_code == 401
    told = here.admin.post("/v1/tokens", {"role": "viewer", "expires_in_s": 60})
    viewer = Api(here.http, told["token"])
    assert viewer.call("GET", "/v1/runs").status_code == 200
    clock.pass_s(61)
    assert viewer.call("GET", "/v1/runs").status_code == 401
    other = here.admin.post("/v1/tokens", {"role": "viewer"})
    assert here.admin.call("DELETE", f"/v1/tokens/{other['id']}").status_code == 204
    assert Api(here.http, other["token"]).call("GET", "/v1/runs").status_code == 401


def test_no_secret_is_stored_or_listed(here: Plane) -> None:
    token = here.admin.post("/v1/tokens", {"role": "viewer"})["token"]
    listed = json.dumps(here.admin.get("/v1/tokens"))
    assert token not in listed
    assert token not in json.dumps(here.admin.get("/v1/audit"))


def test_a_login_code_is_good_once_and_gives_the_role_of_who_asked(
    here: Plane, clock: FakeClock
) -> None:
    code = here.people["operator"].post("/v1/login-codes")["code"]
    nobody = Api(here.http, None)
    login = nobody.post("/v1/logins", {"code": code}, expect=201)
    assert login["role"] == "operator"
    session = Api(here.http, login["token"])
    assert session.get("/v1/logins/current")["role"] == "operator"
    assert session.call("POST", "/v1/tokens", {"role": "admin"}).status_code == 403
    again = nobody.call("POST", "/v1/logins", {"code": code})
    assert (again.status_code, again.json()["code"]) == (401, "bad_code")
    assert session.call("DELETE", "/v1/logins/current").status_code == 204
    assert session.call("GET", "/v1/runs").status_code == 401


def test_a_login_code_ends_after_ten_minutes_and_with_its_makers_token(
    here: Plane, clock: FakeClock
) -> None:
    nobody = Api(here.http, None)
    late = here.admin.post("/v1/login-codes")["code"]
    clock.pass_s(601)
    assert nobody.call("POST", "/v1/logins", {"code": late}).status_code == 401
    told = here.admin.post("/v1/tokens", {"role": "viewer"})
    code = Api(here.http, told["token"]).post("/v1/login-codes")["code"]
    here.admin.call("DELETE", f"/v1/tokens/{told['id']}")
    assert nobody.call("POST", "/v1/logins", {"code": code}).status_code == 401


def nested(levels: int) -> bytes:
    return b'{"spec": ' + b"[" * levels + b"]" * levels + b"}"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "bad_json"),
        (b'{"spec": {"name": NaN}}', "bad_json"),
        (b'{"spec": {"name": "a\\u0000"}}', "bad_text"),
        (b'{"spec": {"\\ud800": 1}}', "bad_text"),
        (b"[" * 100_000, "bad_json"),
        (nested(MAX_LEVELS + 1), "bad_json"),
        (nested(400), "bad_json"),
        (b"\xff\xfe", "bad_json"),
    ],
)
def test_what_is_not_json_or_cannot_be_stored_is_refused_at_the_door(
    here: Plane, body: bytes, code: str
) -> None:
    headers = {"Authorization": f"Bearer {here.admin.token}"}
    answer = here.http.post("/v1/runs", content=body, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, code)


def test_a_body_that_is_nested_as_deeply_as_it_may_be_is_looked_at(here: Plane) -> None:
    headers = {"Authorization": f"Bearer {here.admin.token}"}
    body = nested(MAX_LEVELS)
    assert here.http.post("/v1/runs", content=body, headers=headers).status_code == 422


def test_a_body_beyond_the_limit_is_refused(here: Plane) -> None:
    headers = {"Authorization": f"Bearer {here.admin.token}"}
    answer = here.http.post("/v1/runs", content=b" " * (3 << 20), headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


def test_whoever_hangs_up_within_a_message_is_refused_and_is_no_fault_of_ours(here: Plane) -> None:
    told = iter([{"type": "http.request", "body": b"{", "more_body": True}])
    answered: list[Any] = []

    async def receive() -> Any:
        return next(told, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        answered.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/runs",
        "query_string": b"",
        "headers": [(b"authorization", f"Bearer {here.admin.token}".encode())],
    }
    asyncio.run(here.http.app(scope, receive, send))
    assert answered[0]["status"] == 400
    assert b'"disconnected"' in answered[1]["body"]


def test_nul_in_a_path_or_query_is_refused(here: Plane) -> None:
    assert here.admin.call("GET", "/v1/runs/a%00b").status_code == 400
    assert here.admin.call("GET", "/v1/runs?state=a%00").status_code == 400


@pytest.mark.parametrize("path", ["/v1/runs/rnothere", "/v1/nothing", "/v1/checkpoints/x-g1-s1"])
def test_what_is_not_there_is_404_as_a_problem_document(here: Plane, path: str) -> None:
    answer = here.admin.call("GET", path)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert answer.headers["content-type"] == "application/problem+json"
