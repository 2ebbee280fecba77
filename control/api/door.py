"""The door: what every request passes before its route sees it. Token and role first, then the size
of the body and its JSON.

Bodies must be JSON without NaN, without NUL and without halves of surrogate pairs: no database
keeps those, and each is refused here once, instead of failing somewhere below.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Scope

from control import auth, rights
from control.api.context import Shell
from control.api.errors import answer_error
from trainmaster.document import UNSTORABLE
from trainmaster.errors import TrainmasterError, UserError

MAX_BODY_BYTES = 2 << 20
MAX_LEVELS = 100
"""Of lists and mappings in each other: more than any request of ours needs, and fewer than those
who walk through one have stack for.
"""


class TooLargeError(UserError):
    """A body beyond what any request of ours needs."""

    code = "too_large"
    http_status = 413


class DoorRequest(Request):
    """A request whose body is bounded, and whose JSON can be stored."""

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            parts: list[bytes] = []
            size = 0
            try:
                async for part in self.stream():
                    size += len(part)
                    if size > MAX_BODY_BYTES:
                        raise TooLargeError(f"the body has more than {MAX_BODY_BYTES} bytes")
                    parts.append(part)
            except ClientDisconnect as error:
                raise UserError(
                    "the connection ended before the message did", code="disconnected"
                ) from error
            self._body = b"".join(parts)
        return self._body

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            self._json = read_json(await self.body())
        return self._json


def read_json(body: bytes) -> Any:
    """Return the JSON of a body.

    Raises:
        UserError: it is not JSON as RFC 8259 has it, or holds text that cannot be stored.
    """
    try:
        value = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise UserError(f"the body is not JSON: {error}", code="bad_json") from error
    refuse_unstorable(value)
    return value


def refuse_unstorable(value: Any, level: int = 0) -> None:
    """Raise if there is text in `value` that no database keeps, or if it is nested too deeply.

    Raises:
        UserError: there is, or it is.
    """
    if level > MAX_LEVELS:
        raise UserError(f"the body is nested more than {MAX_LEVELS} levels deep", code="bad_json")
    if isinstance(value, str):
        if UNSTORABLE.search(value):
            raise UserError(
                "text contains NUL or half of a surrogate pair, which cannot be stored",
                code="bad_text",
            )
    elif isinstance(value, dict):
        for key, each in value.items():
            refuse_unstorable(key)
            refuse_unstorable(each, level + 1)
    elif isinstance(value, list):
        for each in value:
            refuse_unstorable(each, level + 1)


def _no_constant(word: str) -> float:
    raise ValueError(
        f"{word} is not JSON; write it as the string {word!r} where a number may be non-finite"
    )


class DoorRoute(APIRoute):
    """A route behind the door. It can only be made if the table of roles has it."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        for method in self.methods or ():
            assert (method, self.path) in rights.LEAST_ROLE, (
                f"{method} {self.path} has no role (control.auth)"
            )

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        path = self.path

        async def behind_the_door(request: Request) -> Response:
            request = DoorRequest(_as_json(request.scope), request.receive)
            try:
                refuse_unstorable([*request.path_params.values(), *request.query_params.values()])
                if rights.LEAST_ROLE[(request.method, path)] != rights.OPEN:
                    await run_in_threadpool(_admit, request, path)
                if await request.body():
                    await request.json()  # kept; read here, where what is wrong with it can be said
                return await handle(request)
            except TrainmasterError as error:
                return answer_error(error)

        return behind_the_door


def _as_json(scope: Scope) -> Scope:
    """Return the scope of the same request, said to be JSON: no route takes anything else."""
    headers = [each for each in scope["headers"] if each[0] != b"content-type"]
    return {**scope, "headers": [*headers, (b"content-type", b"application/json")]}


def _admit(request: Request, path: str) -> None:
    shell: Shell = request.app.state.shell
    token = auth.bearer(request.headers.get("authorization"))
    caller = None
    if token is not None:
        with shell.db.read() as connection:
            caller = auth.caller_of(connection, token, now=shell.clock.now())
    rights.admit(caller, request.method, path, node=request.path_params.get("node"))
    request.state.caller = caller
