"""`trainmaster token` and `audit`: who may do what, and who did what."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from trainmaster.cli.quantities import clock_text
from trainmaster.cli.read import AsJson
from trainmaster.cli.session import segment, session_of
from trainmaster.errors import UserError

app = typer.Typer(help="Create, list and revoke tokens.", no_args_is_help=True)


class Role(StrEnum):
    """What a token may do; each may do what those before it may, but for the agent."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"
    AGENT = "agent"


@app.command("create")
def create_token(
    context: typer.Context,
    role: Annotated[Role, typer.Option(help="What it may do.")],
    node: Annotated[str | None, typer.Option(help="The node that an agent's token is for.")] = None,
    as_json: AsJson = False,
) -> None:
    """Create a token; it is shown this once."""
    if (role is Role.AGENT) != (node is not None):
        raise UserError("--node belongs to an agent's token, and to no other")
    session = session_of(context)
    body = {"role": role.value} if node is None else {"role": role.value, "node": node}
    created = session.api.post("/v1/tokens", body)
    if as_json:
        session.output.json(created)
        return
    session.output.say(f"Token {created['id']} ({role.value}), shown this once:")
    session.output.line(created["token"])


@app.command("list")
def list_tokens(context: typer.Context, as_json: AsJson = False) -> None:
    """List tokens, without their secrets."""
    session = session_of(context)
    found = session.api.get("/v1/tokens")
    if as_json:
        session.output.json(found)
        return
    session.output.table(
        ["TOKEN", "ROLE", "NODE", "CREATED", "REVOKED"],
        [
            [
                token["id"],
                token["role"],
                token.get("node"),
                clock_text(token.get("created_at")),
                clock_text(token.get("revoked_at")),
            ]
            for token in found
        ],
        "There are no tokens.",
    )


@app.command("revoke")
def revoke_token(
    context: typer.Context, token: Annotated[str, typer.Argument(metavar="ID")]
) -> None:
    """Revoke a token by its id; who holds it is refused from now on."""
    session = session_of(context)
    session.api.delete(f"/v1/tokens/{segment('token', token)}")
    session.output.line(f"Token {token} is revoked.")


def audit(context: typer.Context, as_json: AsJson = False) -> None:
    """List what people, rules and agents have asked for, oldest first."""
    session = session_of(context)
    found = session.api.get("/v1/audit")
    if as_json:
        session.output.json(found)
        return
    session.output.table(
        ["AT", "WHO", "WHAT", "TARGET", "WHY"],
        [
            [
                clock_text(entry.get("at")),
                entry.get("actor"),
                entry.get("action"),
                entry.get("target"),
                entry.get("why") or "",
            ]
            for entry in found
        ],
        "Nothing has been asked for yet.",
    )
