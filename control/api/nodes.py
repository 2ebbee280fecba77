"""Nodes: the sync that agents live by, and what people see and ask of nodes."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from control.api.answers import Answer
from control.api.bodies import WhyBody
from control.api.context import ByCaller, Shell, WithShell
from control.api.door import DoorRoute
from control.db import asking, assignments, chores, facts, listings
from trainmaster.document import path_text
from trainmaster.errors import Problem, SpecError, UserError
from trainmaster.ids import node_id_problem
from trainmaster.wire import PROTOCOL_VERSION, Sync, SyncReply

router = APIRouter(prefix="/v1/nodes", route_class=DoorRoute, tags=["nodes"])


@router.post("/{node}/sync")
async def sync(node: str, request: Request, shell: WithShell) -> Response:
    """Store what a node says; answer what should run there."""
    body = await request.body()
    answer = await run_in_threadpool(exchange, shell, node, body)
    return Response(answer, media_type="application/json")


def exchange(shell: Shell, node: str, body: bytes) -> bytes:
    """Make one exchange with a node.

    Raises:
        UserError: what it sent is not a sync.
    """
    problem = node_id_problem(node)
    if problem is not None:
        raise UserError(f"the node's name {problem}", code="bad_node")
    message = _read(body)
    now = shell.clock.now()
    with shell.db.write() as connection:
        stored = facts.store(connection, node, message, now=now)
        work = chores.take(connection, node, now=now)
    if stored.touched:
        shell.wake()
    with shell.db.read() as connection:
        wanted = assignments.assignments_of(connection, node)
        come_back_s = assignments.come_back_s(connection, node, wanted, len(work))
    reply = SyncReply(
        cursors=dict(stored.cursors), assignments=wanted, chores=work, next_sync_s=come_back_s
    )
    return reply.model_dump_json().encode()


def _read(body: bytes) -> Sync:
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
    return message


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
