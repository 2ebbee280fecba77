"""Silences and maintenance windows."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from control.api.answers import Answer
from control.api.bodies import Text
from control.api.context import ByCaller, WithShell
from control.api.door import DoorRoute
from control.db import silences
from control.db.silences import NewSilence
from trainmaster.errors import NotFoundError, Problem, SpecError
from trainmaster.facts import Instant
from trainmaster.plan import Strict

router = APIRouter(prefix="/v1/silences", route_class=DoorRoute, tags=["alerts"])

LONGEST_S = 90 * 86400


class SilenceBody(Strict):
    """What is to be quiet, and for how long. Without a rule it is every rule: a maintenance
    window, which may begin later, and may be about a node.
    """

    rule: Annotated[str, Field(max_length=200)] | None = None
    run: Annotated[str, Field(max_length=200)] | None = None
    node: Annotated[str, Field(max_length=63)] | None = None
    for_s: Annotated[float, Field(ge=1, le=LONGEST_S)]
    begins_at: Annotated[Instant, Field(strict=False)] | None = None
    why: Text = ""


@router.get("")
def list_silences(shell: WithShell, ended: bool = False) -> Response:
    """List silences, oldest first; with `ended` also those that are over."""
    with shell.db.read() as connection:
        return Answer(silences.listed(connection, now=shell.clock.now(), ended=ended))


@router.post("")
def add_silence(body: SilenceBody, shell: WithShell, caller: ByCaller) -> Response:
    """Keep a rule, or all rules, quiet for a while."""
    now = shell.clock.now()
    begins_at = body.begins_at or now
    if begins_at + timedelta(seconds=body.for_s) <= now:
        raise SpecError([Problem("begins_at", "the silence would be over already")])
    if begins_at > now + timedelta(seconds=LONGEST_S):
        raise SpecError([Problem("begins_at", "lies more than 90 days ahead")])
    new = NewSilence(
        rule=body.rule,
        run=body.run,
        node=body.node,
        begins_at=begins_at,
        ends_at=begins_at + timedelta(seconds=body.for_s),
        why=body.why,
    )
    with shell.db.write() as connection:
        added = silences.add(connection, new, actor=caller.actor, now=now)
    shell.wake()
    return Answer(added, status_code=201)


@router.delete("/{silence}")
def end_silence(silence: str, shell: WithShell, caller: ByCaller) -> Response:
    """End a silence now."""
    if not (silence.isascii() and silence.isdecimal() and len(silence) < 19):
        raise NotFoundError(f"there is no silence {silence!r}")
    with shell.db.write() as connection:
        ended = silences.end(connection, int(silence), actor=caller.actor, now=shell.clock.now())
    shell.wake()
    return Answer(ended)
