"""Channels of notifications: which there are, and a test of each. Their addresses are not shown."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from control.api.answers import Answer
from control.api.context import ByCaller, WithShell
from control.api.door import DoorRoute
from control.db import history
from control.notify.channels import open_channel
from trainmaster.errors import NotFoundError
from trainmaster.notification import Notification

router = APIRouter(prefix="/v1/channels", route_class=DoorRoute, tags=["alerts"])


@router.get("")
def list_channels(shell: WithShell) -> Response:
    """List the channels that the settings of this control plane name."""
    return Answer(
        [
            {
                "name": each.name,
                "kind": each.scheme,
                "least_severity": each.least_severity,
                "default": each.default,
            }
            for each in shell.settings.channels
        ]
    )


@router.post("/{name}/test")
def send_test(name: str, shell: WithShell, caller: ByCaller) -> Response:
    """Send a test now; answers once the service has taken or refused it."""
    for channel in shell.settings.channels:
        if channel.name == name:
            break
    else:
        raise NotFoundError(f"there is no channel {name!r} here")
    now = shell.clock.now()
    with shell.db.write() as connection:
        history.audit(connection, at=now, actor=caller.actor, action="channel_tested", target=name)
    told = f"Asked for by {caller.actor}. Alerts and incidents will come this way."
    open_channel(channel).send(Notification("Trainmaster: a test", told, "info"))
    return Answer({"name": name, "state": "sent"})
