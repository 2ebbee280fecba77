"""Who is asking: tokens, and the codes and sessions that lead to them.

A token is 32 random bytes; the database holds its SHA-256 alone. An agent's is bound to its node. A
login code is good once, for ten minutes, and gives a session token with the role of who asked for
it. A link token lets one agent send messages to others, to measure the links between them, and
nothing else.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, insert, or_, select, update

from control.db import history, tables
from control.db.sql.values import instant_text
from control.rights import ADMIN, AGENT, LINK, ROLES, Caller
from trainmaster.errors import (
    ConflictError,
    NotFoundError,
    UnauthenticatedError,
    UserError,
)
from trainmaster.ids import name_problem, node_id_problem

CODE_LIFE = timedelta(minutes=10)
SESSION_LIFE = timedelta(hours=12)
LINK_LIFE = timedelta(minutes=10)
PREFIX = "tm_"


def bearer(header: str | None) -> str | None:
    """Return the token of an Authorization header."""
    scheme, _, token = (header or "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def caller_of(connection: Connection, token: str | None, *, now: datetime) -> Caller | None:
    """Return whose token it is, None without one.

    Raises:
        UnauthenticatedError: it is unknown, revoked or expired.
    """
    if token is None:
        return None
    c = tables.tokens.c
    row = connection.execute(
        select(tables.tokens).where(
            c.sha256 == digest(token),
            *_holds(now),
        )
    ).one_or_none()
    if row is None:
        raise UnauthenticatedError("the token is unknown, revoked or expired")
    return Caller(row.id, row.name, row.role, row.node, row.expires_at)


def valid_tokens(connection: Connection, sha256s: Collection[str], *, now: datetime) -> set[str]:
    """Return those digests that are of tokens which hold."""
    c = tables.tokens.c
    query = select(c.sha256).where(
        c.sha256.in_(sha256s),
        *_holds(now),
    )
    return set(connection.scalars(query))


def create_token(
    connection: Connection,
    *,
    role: str,
    name: str | None,
    node: str | None,
    actor: str,
    now: datetime,
    expires_at: datetime | None = None,
) -> tuple[str, str]:
    """Store a new token; return its id, and the token itself, which is told this once.

    Raises:
        UserError: such a token makes no sense.
    """
    if role not in ROLES:
        raise UserError(f"{role!r} is not a role: choose {', '.join(ROLES)}", code="bad_role")
    if (role == AGENT) != (node is not None):
        raise UserError(
            "an agent's token is bound to a node: give role agent and the node's name together"
        )
    if node is not None and (problem := node_id_problem(node)):
        raise UserError(f"the node's name {problem}", code="bad_node")
    name = name or (f"agent {node}" if node else role)
    if problem := name_problem(name):
        raise UserError(f"the token's name {problem}", code="bad_name")
    return _stored(connection, role, name, node, actor=actor, now=now, expires_at=expires_at)


def create_link_token(
    connection: Connection, node: str, *, actor: str, now: datetime
) -> tuple[str, datetime]:
    """Return a token with which the agent of `node` may send messages to others, and until when."""
    expires_at = now + LINK_LIFE
    _, token = _stored(
        connection, LINK, f"links of {node}", None, actor=actor, now=now, expires_at=expires_at
    )
    return token, expires_at


def _stored(
    connection: Connection,
    role: str,
    name: str,
    node: str | None,
    *,
    actor: str,
    now: datetime,
    expires_at: datetime | None,
) -> tuple[str, str]:
    token = PREFIX + secrets.token_hex(32)
    token_id = "t" + secrets.token_hex(6)
    connection.execute(
        insert(tables.tokens).values(
            id=token_id,
            sha256=digest(token),
            name=name,
            role=role,
            node=node,
            created_at=now,
            created_by=actor,
            expires_at=expires_at,
        )
    )
    data = {"role": role, "node": node, "name": name}
    history.audit(
        connection, at=now, actor=actor, action="token_created", target=token_id, data=data
    )
    return token_id, token


def revoke_token(connection: Connection, token_id: str, *, actor: str, now: datetime) -> None:
    """End a token now.

    Raises:
        NotFoundError: there is none with this id.
    """
    c = tables.tokens.c
    ended = (
        update(tables.tokens).where(c.id == token_id, c.revoked_at.is_(None)).values(revoked_at=now)
    )
    if connection.execute(ended).rowcount:
        history.audit(connection, at=now, actor=actor, action="token_revoked", target=token_id)
    elif connection.scalar(select(c.id).where(c.id == token_id)) is None:
        raise NotFoundError(f"there is no token {token_id}")


def tokens(connection: Connection) -> list[dict[str, Any]]:
    """Return all tokens, oldest first, without what would let anybody use them."""
    c = tables.tokens.c
    query = select(tables.tokens).order_by(c.created_at, c.id)
    return [
        {
            "id": row.id,
            "name": row.name,
            "role": row.role,
            "node": row.node,
            "created_at": instant_text(row.created_at),
            "created_by": row.created_by,
            "expires_at": row.expires_at and instant_text(row.expires_at),
            "revoked_at": row.revoked_at and instant_text(row.revoked_at),
        }
        for row in connection.execute(query)
    ]


def create_code(connection: Connection, caller: Caller, *, now: datetime) -> tuple[str, datetime]:
    """Return a one-time login code with the caller's role, and until when it is good."""
    code = secrets.token_urlsafe(24)
    expires_at = now + CODE_LIFE
    connection.execute(
        insert(tables.login_codes).values(
            sha256=digest(code), token=caller.token, created_at=now, expires_at=expires_at
        )
    )
    return code, expires_at


def log_in(connection: Connection, code: str, *, now: datetime) -> dict[str, Any]:
    """Use up a login code; return the session token, its role and until when it is good.

    Raises:
        UnauthenticatedError: the code is unknown, used or expired, or its maker's token has ended.
    """
    k, t = tables.login_codes.c, tables.tokens.c
    refused = UnauthenticatedError(
        "the login code is unknown, used or expired: ask for a new one", code="bad_code"
    )
    used = update(tables.login_codes).where(
        k.sha256 == digest(code), k.used_at.is_(None), k.expires_at > now
    )
    if not connection.execute(used.values(used_at=now)).rowcount:
        raise refused
    maker = connection.execute(
        select(t.name, t.role, t.expires_at)
        .join(tables.login_codes, k.token == t.id)
        .where(
            k.sha256 == digest(code),
            *_holds(now),
        )
    ).one_or_none()
    if maker is None:
        raise refused
    expires_at = min(now + SESSION_LIFE, maker.expires_at or now + SESSION_LIFE)
    session, token = create_token(
        connection,
        role=maker.role,
        name=maker.name,
        node=None,
        actor=maker.name,
        now=now,
        expires_at=expires_at,
    )
    return {
        "id": session,
        "token": token,
        "name": maker.name,
        "role": maker.role,
        "expires_at": instant_text(expires_at),
    }


def _holds(now: datetime) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions under which a token is good."""
    c = tables.tokens.c
    return c.revoked_at.is_(None), or_(c.expires_at.is_(None), c.expires_at > now)


def has_admin(connection: Connection, token: str | None) -> bool:
    """Return whether `token` is an admin's that still works."""
    if token is None:
        return False
    c = tables.tokens.c
    query = select(c.id).where(c.sha256 == digest(token), c.role == ADMIN, c.revoked_at.is_(None))
    return connection.scalar(query) is not None


def adopt_admin(connection: Connection, token: str, *, now: datetime) -> None:
    """Make `token`, which this home keeps, an admin's (a database begun anew beside an old home).

    Raises:
        ConflictError: it was revoked.
    """
    c = tables.tokens.c
    if connection.scalar(select(c.id).where(c.sha256 == digest(token))) is not None:
        raise ConflictError("the stored token was revoked")
    connection.execute(
        insert(tables.tokens).values(
            id="t" + secrets.token_hex(6),
            sha256=digest(token),
            name=ADMIN,
            role=ADMIN,
            created_at=now,
            created_by="control",
        )
    )


def digest(secret: str) -> str:
    """Return what the database holds of a secret."""
    # Random 256-bit secrets need no slow hash: there is nothing to guess.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
