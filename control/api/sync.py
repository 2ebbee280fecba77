"""The sync of nodes: the one route that carries a fleet, and therefore stands outside of the
framework's ways. It is read, let in and answered here; `control.group_commit` stores it.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

from control import auth, rights
from control.api.context import Shell
from control.api.door import TooLargeError, refuse_unstorable
from control.api.errors import answer_error
from control.db.facts import Said
from trainmaster.document import path_text
from trainmaster.errors import Problem, SpecError, TrainmasterError, UserError
from trainmaster.ids import node_id_problem
from trainmaster.wire import PROTOCOL_VERSION, Sync

PATH = "/v1/nodes/{node}/sync"
_PATH = re.compile(r"/v1/nodes/([^/]+)/sync")

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


class SyncDoor:
    """ASGI middleware that answers `POST /v1/nodes/{node}/sync` itself and hands on all else."""

    def __init__(self, app: ASGIApp, shell: Shell) -> None:
        assert ("POST", PATH) in rights.LEAST_ROLE
        self._app = app
        self._shell = shell
        self._let_in: OrderedDict[tuple[str, str], float] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            found = _PATH.fullmatch(scope["path"])
            if found is not None:
                await self._answer(found[1], scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _answer(self, node: str, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = await self._exchange(node, scope, receive)
        except TrainmasterError as error:
            await answer_error(error)(scope, receive, send)
            return
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(answer)).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def _exchange(self, node: str, scope: Scope, receive: Receive) -> bytes:
        refuse_unstorable(node)
        header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        token = auth.bearer(header.decode("latin-1"))
        token_sha256 = auth.digest(token) if token is not None else ""
        await self._admit(token, token_sha256, node)
        problem = node_id_problem(node)
        if problem is not None:
            raise UserError(f"the node's name {problem}", code="bad_node")
        body = await _body(receive)
        if len(body) <= SMALL_BYTES:
            said = read(node, body)
        else:
            said = await run_in_threadpool(read, node, body)
        answer = await self._shell.syncs.exchange(said, token_sha256)
        # The transaction has just found that the token holds.
        self._remember(token_sha256, node)
        return answer

    async def _admit(self, token: str | None, token_sha256: str, node: str) -> None:
        """Return if `node` is let in.

        Raises:
            UnauthenticatedError, ForbiddenError: it is not.
        """
        if self._let_in.get((token_sha256, node), 0.0) <= time.monotonic():
            await run_in_threadpool(_let_in, self._shell, token, node)
            self._remember(token_sha256, node)

    def _remember(self, token_sha256: str, node: str) -> None:
        self._let_in[token_sha256, node] = time.monotonic() + LET_IN_FOR_S
        while len(self._let_in) > MAX_LET_IN:
            self._let_in.popitem(last=False)


def _let_in(shell: Shell, token: str | None, node: str) -> None:
    with shell.db.read() as connection:
        caller = auth.caller_of(connection, token, now=shell.clock.now())
    rights.admit(caller, "POST", PATH, node=node)


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
