"""Alerts and incidents over all runs."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from control.api.answers import Answer
from control.api.context import WithShell
from control.api.door import DoorRoute
from control.db import external, listings

router = APIRouter(prefix="/v1", route_class=DoorRoute, tags=["alerts"])


@router.get("/alerts")
def list_alerts(shell: WithShell, run: str | None = None, state: str | None = None) -> Response:
    """List alerts, oldest first: those of our rules, then those from outside."""
    now = shell.clock.now()
    with shell.db.read() as connection:
        ours = listings.alerts(connection, run=run, state=state, now=now)
        return Answer([*ours, *external.listed(connection, run=run, state=state)])


@router.get("/incidents/{incident}")
def get_incident(incident: str, shell: WithShell) -> Response:
    """Show one incident."""
    with shell.db.read() as connection:
        return Answer(listings.incident(connection, incident))


@router.get("/incidents")
def list_incidents(shell: WithShell, run: str | None = None, state: str | None = None) -> Response:
    """List incidents, oldest first."""
    with shell.db.read() as connection:
        return Answer(listings.incidents(connection, run=run, state=state))
