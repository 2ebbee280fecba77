"""The receiver of Alertmanager's webhook (version 4 of its message).

Sending the same message again changes nothing, so Alertmanager may do so as often as it likes. It
drops what is answered with 4xx; so an alert about a run or node that nobody knows is stored all
the same, and only a message that is none is refused.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field
from starlette.responses import Response

from control.api.answers import Answer
from control.api.context import ByCaller, WithShell
from control.api.door import DoorRoute
from control.db import external
from control.db.external import Told

router = APIRouter(prefix="/v1", route_class=DoorRoute, tags=["alerts"])

NAME_CHARS, TEXT_CHARS = 200, 4000


def _in_part(texts: dict[str, str]) -> dict[str, str]:
    """Templates of annotations may list a whole fleet: what is kept of one is its beginning."""
    return {name[:NAME_CHARS]: text[:TEXT_CHARS] for name, text in texts.items()}


_Texts = Annotated[dict[str, str], Field(max_length=200), AfterValidator(_in_part)]
_FIRST, _LAST = datetime(2000, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)


class _Outside(BaseModel):
    """Words of another program: what is not known is ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class OneAlert(_Outside):
    """One alert. While it fires, `endsAt` is in the year 1, or ahead."""

    status: Literal["firing", "resolved"]
    labels: _Texts
    annotations: _Texts = {}
    starts_at: Annotated[AwareDatetime, Field(alias="startsAt")]
    ends_at: Annotated[AwareDatetime | None, Field(alias="endsAt")] = None
    fingerprint: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[0-9A-Za-z_-]+$")]


class Message(_Outside):
    """What the webhook sends."""

    version: Literal["4"] = "4"
    alerts: Annotated[list[OneAlert], Field(max_length=1000)]


@router.post("/alertmanager")
def receive(body: Message, shell: WithShell, caller: ByCaller) -> Response:
    """Store alerts from outside, and ask for what they carry."""
    now = shell.clock.now()
    message = [_told(alert, now) for alert in body.alerts]
    outcomes = external.receive(
        shell.db,
        message,
        allowed=shell.settings.external_actions,
        actor=caller.actor,
        now=now,
    )
    shell.wake()
    return Answer(
        {
            "alerts": [
                {"fingerprint": told.fingerprint, "outcome": outcome}
                for told, outcome in zip(message, outcomes, strict=True)
            ]
        }
    )


def _told(alert: OneAlert, now: datetime) -> Told:
    ends_at = None
    if alert.status == "resolved":
        has_end = alert.ends_at is not None and alert.ends_at > _FIRST
        ends_at = alert.ends_at if has_end else now
    return Told(
        fingerprint=alert.fingerprint,
        starts_at=_within(alert.starts_at),
        ends_at=None if ends_at is None else _within(ends_at),
        name=alert.labels.get("alertname", "alert")[:200],
        labels=alert.labels,
        annotations=alert.annotations,
        action=alert.labels.get("trainmaster_action")
        or alert.annotations.get("trainmaster_action", ""),
    )


def _within(at: datetime) -> datetime:
    """Return the instant, or the nearest that can be written in every zone: an alert whose clock is
    wrong is still one.
    """
    return min(max(at, _FIRST), _LAST).astimezone(UTC)
