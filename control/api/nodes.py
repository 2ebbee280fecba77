"""Nodes: what people see and ask of them. Their sync is `control.api.sync`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from control.api.answers import Answer
from control.api.bodies import WhyBody
from control.api.context import ByCaller, Shell, WithShell
from control.api.door import DoorRoute
from control.db import asking, listings

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
