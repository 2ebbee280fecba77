"""One look at a run: all that its page shows again and again, in one answer, without what the
reader has already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

from fastapi import APIRouter
from pydantic_core import to_json
from sqlalchemy import Connection
from starlette.responses import Response

from control.api.answers import as_json
from control.api.bodies import LookBody
from control.api.context import Shell, WithShell
from control.api.door import DoorRoute
from control.api.runs import alerts_of, several_of, shown
from control.db import history, listings

router = APIRouter(prefix="/v1/runs", route_class=DoorRoute, tags=["runs"])

_VERSION_CHARS = 16


@router.post("/{run}/look")
def look(run: str, body: LookBody, shell: WithShell) -> Response:
    """Show what the page of a run needs at once: each part with its version, those that the reader
    knows without their answer; beside them the series that are asked for. Stores nothing.
    """
    told = {"run": as_json(shown(shell, run))}
    with shell.db.read() as connection:
        for name, part in _PARTS.items():
            told[name] = as_json(part(shell, connection, run))
    parts = b",".join(_told(name, text, body.known) for name, text in told.items())
    series = to_json([several_of(shell, run, each) for each in body.series])
    content = b'{"parts":{' + parts + b'},"series":' + series + b"}"
    return Response(content, media_type="application/json")


def _told(name: str, text: bytes, known: Mapping[str, str]) -> bytes:
    version = sha256(text).hexdigest()[:_VERSION_CHARS]
    answer = b"" if known.get(name) == version else b',"answer":' + text
    return f'"{name}":{{"version":"{version}"'.encode() + answer + b"}"


def _newest_event(_: Shell, connection: Connection, run: str) -> int | None:
    found = history.events_of(connection, run, limit=1, newest=True)
    return found[0]["id"] if found else None


_PARTS: Mapping[str, Callable[[Shell, Connection, str], Any]] = {
    "alerts": alerts_of,
    "incidents": lambda _, connection, run: listings.incidents(connection, run=run),
    "checkpoints": lambda _, connection, run: listings.checkpoints_of(connection, run),
    "requests": lambda _, connection, run: listings.requests_of(connection, run),
    "nodes": lambda shell, connection, _: listings.nodes(
        connection, now=shell.clock.now(), up_since=shell.up_since
    ),
    "newest_event": _newest_event,
}
"""What belongs to a run beside itself, as the address of each tells it."""
