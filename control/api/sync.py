"""The sync of nodes: the one route that carries a fleet, and therefore stands outside of the
framework's ways. It is read, let in and answered here; `control.group_commit` stores it.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from control import auth
from control.api.context import Shell
from control.api.door import TooLargeError, refuse_unstorable
from control.db.facts import Said
from trainmaster.document import path_text
from trainmaster.errors import Problem, SpecError, UserError
from trainmaster.ids import node_id_problem
from trainmaster.wire import PROTOCOL_VERSION, Sync

PATH = "/v1/nodes/{node}/sync"

MAX_BYTES = 32 << 20

SMALL_BYTES = 16 << 10
"""A body up to this size is parsed at once; a larger one in a thread, where it holds up nobody."""

LET_IN_FOR_S = 10.0
"""How long a token that was let in is not asked for again before its body is read. Whether it still
holds is asked in the transaction that stores the sync.
"""

MAX_LET_IN = 20_000


def read(node: str, body: bytes) -> Said:
    """Return what a node says.

    Raises:
        UserError: it is not a sync.
    """
    try:
        message = Sync.model_validate_json(body)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)[:20]
        raise SpecError([Problem(path_text(each["loc"]), each["msg"]) for each in found]) from error
    if message.protocol > PROTOCOL_VERSION:
        raise UserError(
            f"the agent speaks protocol {message.protocol}, this control plane "
            f"{PROTOCOL_VERSION}: upgrade it first",
            code="protocol",
        )
    return Said.of(node, message)


class SyncRoute:
    """`POST /v1/nodes/{node}/sync` as a bare ASGI application."""

    def __init__(self) -> None:
        assert ("POST", PATH) in auth.LEAST_ROLE
        self._let_in: OrderedDict[tuple[str, str], float] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # What is raised here is answered as everywhere (`control.api.errors`).
        request = Request(scope, receive)
        shell: Shell = request.app.state.shell
        node = request.path_params["node"]
        refuse_unstorable(node)
        token_sha256 = await self._admit(shell, request, node)
        problem = node_id_problem(node)
        if problem is not None:
            raise UserError(f"the node's name {problem}", code="bad_node")
        body = await _body(receive)
        if len(body) <= SMALL_BYTES:
            said = read(node, body)
        else:
            said = await run_in_threadpool(read, node, body)
        answer = await shell.syncs.exchange(said, token_sha256)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(answer)).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def _admit(self, shell: Shell, request: Request, node: str) -> str:
        """Return the digest of the token with which `node` is let in.

        Raises:
            UnauthenticatedError, ForbiddenError: it is not.
        """
        token = auth.bearer(request.headers.get("authorization"))
        token_sha256 = auth.digest(token) if token is not None else ""
        key, now = (token_sha256, node), time.monotonic()
        if self._let_in.get(key, 0.0) <= now:
            await run_in_threadpool(_let_in, shell, token, node)
            self._let_in[key] = now + LET_IN_FOR_S
            while len(self._let_in) > MAX_LET_IN:
                self._let_in.popitem(last=False)
        return token_sha256


def _let_in(shell: Shell, token: str | None, node: str) -> None:
    with shell.db.read() as connection:
        caller = auth.caller_of(connection, token, now=shell.clock.now())
    auth.admit(caller, "POST", PATH, node=node)


async def _body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise UserError("the connection ended before the message did", code="disconnected")
        part = message.get("body", b"")
        size += len(part)
        if size > MAX_BYTES:
            raise TooLargeError(f"the body has more than {MAX_BYTES} bytes")
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def install(app: FastAPI) -> None:
    """Add the route to `app`, before any of the framework's."""
    app.router.routes.insert(0, Route(PATH, SyncRoute(), methods=["POST"]))


def described(paths: Mapping[str, Any]) -> dict[str, Any]:
    """Return the paths of an OpenAPI document with the sync beside them; its bodies are documented
    with `trainmaster.wire`.
    """
    said = {
        "tags": ["nodes"],
        "summary": "Sync",
        "description": "Store what a node says; answer what should run there.",
        "operationId": "sync_v1_nodes__node__sync_post",
        "parameters": [
            {"name": "node", "in": "path", "required": True, "schema": {"type": "string"}}
        ],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"type": "object", "title": "Sync"}}},
        },
        "responses": {
            "200": {
                "description": "Successful Response",
                "content": {"application/json": {"schema": {"type": "object"}}},
            }
        },
    }
    return {**paths, PATH: {"post": said}}
