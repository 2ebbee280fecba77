"""Nodes: what people see and ask of them. Their sync is `control.api.sync`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from control import auth
from control.api.answers import Answer
from control.api.bodies import CalibrateBody, WhyBody
from control.api.context import ByCaller, Shell, WithShell
from control.api.door import DoorRoute
from control.api.submission import parsed
from control.db import asking, history, listings
from control.db.fleet import calibrations, chores
from control.db.sql.values import instant_text
from trainmaster.errors import UnavailableError

HEARD_WITHIN = timedelta(seconds=30)
"""Neighbours that were silent for longer are not tried."""

router = APIRouter(prefix="/v1/nodes", route_class=DoorRoute, tags=["nodes"])


@router.get("")
def list_nodes(shell: WithShell) -> Response:
    """List all nodes, in the order in which they first came."""
    with shell.db.read() as connection:
        return Answer(listings.nodes(connection, now=shell.clock.now(), up_since=shell.up_since))


@router.get("/{node}")
def get_node(node: str, shell: WithShell) -> Response:
    """Show one node."""
    return Answer(_shown(shell, node))


@router.post("/{node}/cordon")
def cordon(node: str, shell: WithShell, caller: ByCaller, body: WhyBody | None = None) -> Response:
    """Give a node no new ranks."""
    return _set(shell, node, caller.actor, body, cordoned=True)


@router.post("/{node}/uncordon")
def uncordon(
    node: str, shell: WithShell, caller: ByCaller, body: WhyBody | None = None
) -> Response:
    """Give a node ranks again."""
    return _set(shell, node, caller.actor, body, cordoned=False)


@router.post("/{node}/calibrate")
def calibrate(
    node: str, shell: WithShell, caller: ByCaller, body: CalibrateBody | None = None
) -> Response:
    """Have a node measure what it and its links can do, and what the layers of a spec's workload
    take there; `GET /v1/requests/{id}` tells how far it is, and the node's profile what was found.
    """
    now = shell.clock.now()
    spec = parsed(body.spec)[0] if body and body.spec is not None else None
    with shell.db.write() as connection:
        found = listings.node(connection, node, now=now, up_since=shell.up_since)
        if found["state"] == "lost":
            raise UnavailableError(f"node {node} is lost: start its agent", code="no_node")
        args = calibrations.chore_args(connection, node, heard_since=now - HEARD_WITHIN, spec=spec)
        chore = chores.ask(connection, "calibrate", {"of": node, **args}, now=now, node=node)
        history.audit(
            connection, at=now, actor=caller.actor, action="calibration_requested", target=node
        )
        return Answer(chores.shown(connection, f"{chores.PREFIX}{chore}"), status_code=202)


@router.post("/{node}/link-token")
def link_token(node: str, shell: WithShell, caller: ByCaller) -> Response:
    """Give the agent of a node a token with which its neighbours take messages from it for some
    minutes, to measure the links to them.
    """
    with shell.db.write() as connection:
        token, expires_at = auth.create_link_token(
            connection, node, actor=caller.actor, now=shell.clock.now()
        )
    return Answer({"token": token, "expires_at": instant_text(expires_at)}, status_code=201)


def _set(shell: Shell, node: str, actor: str, body: WhyBody | None, *, cordoned: bool) -> Response:
    why = body.why if body else ""
    with shell.db.write() as connection:
        asking.set_cordoned(
            connection, node, cordoned=cordoned, actor=actor, why=why, now=shell.clock.now()
        )
    shell.wake()
    return Answer(_shown(shell, node))


def _shown(shell: Shell, node: str) -> dict[str, Any]:
    with shell.db.read() as connection:
        return listings.node(connection, node, now=shell.clock.now(), up_since=shell.up_since)
