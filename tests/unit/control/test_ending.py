"""Requests at the end of the process: told to go elsewhere, and never answered with a fault."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from control.api.ending import Ending

SCOPE = {"type": "http", "method": "GET", "path": "/", "headers": []}


async def waits(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.Event().wait()


async def answers(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


async def begins_to_answer(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await asyncio.Event().wait()


def sent_by(app: ASGIApp, *, draining: bool, cancel: bool = False) -> list[Message]:
    """Serve one request, cancelling it once it waits; return what was sent."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def serve() -> None:
        event = threading.Event()
        if draining:
            event.set()
        task = asyncio.ensure_future(Ending(app, event)(SCOPE, receive, send))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if cancel:
            task.cancel()
        await task

    asyncio.run(serve())
    return sent


def headers_of(message: Message) -> dict[bytes, Any]:
    return dict(message["headers"])


def test_a_request_that_is_cut_off_is_told_so():
    start, body = sent_by(waits, draining=True, cancel=True)
    assert start["status"] == 503
    assert headers_of(start)[b"connection"] == b"close"
    assert json.loads(body["body"])["code"] == "stopping"


def test_connections_are_not_kept_while_draining():
    assert headers_of(sent_by(answers, draining=True)[0])[b"connection"] == b"close"
    assert headers_of(sent_by(answers, draining=False)[0]) == {}


@pytest.mark.parametrize(("app", "draining"), [(waits, False), (begins_to_answer, True)])
def test_what_is_cancelled_otherwise_stays_cancelled(app: ASGIApp, draining: bool):
    with pytest.raises(asyncio.CancelledError):
        sent_by(app, draining=draining, cancel=True)
