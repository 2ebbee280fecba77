"""Alerts and incidents over all runs."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from control.api.answers import Answer
from control.api.context import WithShell
from control.api.door import DoorRoute
from control.db import listings

router = APIRouter(prefix="/v1", route_class=DoorRoute, tags=["alerts"])


@router.get("/alerts")
def list_alerts(shell: WithShell, run: str | None = None, state: str | None = None) -> Response:
    """List alerts, oldest first."""
    with shell.db.read() as connection:
        return Answer(listings.alerts(connection, run=run, state=state))


@router.get("/incidents")
def list_incidents(shell: WithShell, run: str | None = None, state: str | None = None) -> Response:
    """List incidents, oldest first."""
    with shell.db.read() as connection:
        return Answer(listings.incidents(connection, run=run, state=state))
