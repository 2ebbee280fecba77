"""Tokens, logins and the audit log."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from control import auth
from control.api.answers import Answer
from control.api.bodies import BEYOND_COUNTING, CodeBody, TokenBody
from control.api.context import ByCaller, WithShell
from control.api.door import DoorRoute
from control.db import history

router = APIRouter(prefix="/v1", route_class=DoorRoute, tags=["access"])


@router.get("/tokens")
def list_tokens(shell: WithShell) -> Response:
    """List tokens, oldest first, without their secrets."""
    with shell.db.read() as connection:
        return Answer(auth.tokens(connection))


@router.post("/tokens")
def create_token(body: TokenBody, shell: WithShell, caller: ByCaller) -> Response:
    """Create a token; the answer is the only place where it can be read."""
    now = shell.clock.now()
    expires_at = None if body.expires_in_s is None else now + timedelta(seconds=body.expires_in_s)
    with shell.db.write() as connection:
        token_id, token = auth.create_token(
            connection,
            role=body.role,
            name=body.name,
            node=body.node,
            actor=caller.actor,
            now=now,
            expires_at=expires_at,
        )
    shown = {
        "id": token_id,
        "token": token,
        "role": body.role,
        "node": body.node,
        "expires_at": expires_at,
    }
    return Answer(shown, status_code=201)


@router.delete("/tokens/{token}")
def revoke_token(token: str, shell: WithShell, caller: ByCaller) -> Response:
    """Revoke a token by its id."""
    with shell.db.write() as connection:
        auth.revoke_token(connection, token, actor=caller.actor, now=shell.clock.now())
    return Response(status_code=204)


@router.post("/login-codes")
def create_code(shell: WithShell, caller: ByCaller) -> Response:
    """Return a code that logs in once, within ten minutes, with the caller's role."""
    with shell.db.write() as connection:
        code, expires_at = auth.create_code(connection, caller, now=shell.clock.now())
    return Answer({"code": code, "role": caller.role, "expires_at": expires_at}, status_code=201)


@router.post("/logins")
def log_in(body: CodeBody, shell: WithShell) -> Response:
    """Exchange a code for a session token."""
    with shell.db.write() as connection:
        return Answer(auth.log_in(connection, body.code, now=shell.clock.now()), status_code=201)


@router.get("/logins/current")
def who_am_i(caller: ByCaller) -> Response:
    """Say whose token this is."""
    return Answer(
        {
            "id": caller.token,
            "name": caller.name,
            "role": caller.role,
            "node": caller.node,
            "expires_at": caller.expires_at,
        }
    )


@router.delete("/logins/current")
def log_out(shell: WithShell, caller: ByCaller) -> Response:
    """End the session whose token this is; a token without an end stays."""
    if caller.expires_at is not None:
        with shell.db.write() as connection:
            auth.revoke_token(connection, caller.token, actor=caller.actor, now=shell.clock.now())
    return Response(status_code=204)


@router.get("/audit")
def get_audit(
    shell: WithShell,
    after: Annotated[int, Query(ge=0, lt=BEYOND_COUNTING)] = 0,
    target: str | None = None,
    limit: Annotated[int, Query(ge=1, le=history.MAX_EVENTS)] = history.MAX_EVENTS,
) -> Response:
    """List what people, rules and agents have asked for, oldest first; the newest `limit` of it."""
    with shell.db.read() as connection:
        return Answer(history.audit_log(connection, after=after, target=target, limit=limit))
