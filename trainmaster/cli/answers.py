"""Commands that answer rules: approve, dismiss, silence, maintenance."""

from __future__ import annotations

import math
import re
import uuid
from datetime import datetime
from typing import Annotated, Any

import typer

from trainmaster.cli.asking import TIMEOUT_S, acknowledged, tell
from trainmaster.cli.quantities import clock_text
from trainmaster.cli.read import AsJson
from trainmaster.cli.session import segment, session_of
from trainmaster.cli.steer import NoWait, Timeout, Why
from trainmaster.errors import UserError

Incident = Annotated[str, typer.Argument(metavar="INCIDENT", help="The incident's id.")]
For = Annotated[str, typer.Option("--for", help="How long: 90s, 30m, 2h, 1d, or 1h30m.")]

_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SPAN = re.compile(r"(?:\d{1,9}(?:\.\d{1,6})?[smhd])+")


def approve(
    context: typer.Context,
    incident: Incident,
    action: Annotated[
        str | None, typer.Option(help="Another action than the incident proposes.")
    ] = None,
    why: Why = "",
    no_wait: NoWait = False,
    timeout: Timeout = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Let a rule that asks take its action."""
    body = {"action": action} if action is not None else {}
    _answer(context, "approve", incident, body, why, no_wait, timeout, as_json=as_json)


def dismiss(
    context: typer.Context,
    incident: Incident,
    why: Why = "",
    no_wait: NoWait = False,
    timeout: Timeout = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Close an incident that asks, without an action."""
    _answer(context, "dismiss", incident, {}, why, no_wait, timeout, as_json=as_json)


def _answer(
    context: typer.Context,
    kind: str,
    incident: str,
    body: dict[str, Any],
    why: str,
    no_wait: bool,
    timeout_s: float,
    *,
    as_json: bool,
) -> None:
    session = session_of(context)
    body = {**body, "why": why, "idempotency_key": uuid.uuid4().hex}
    request = session.api.post(f"/v1/incidents/{segment('incident', incident)}/{kind}", body)
    if not no_wait:
        request = acknowledged(session, request, timeout_s)
    tell(session, request["run"], request, as_json=as_json)


def silence(
    context: typer.Context,
    rule: Annotated[str, typer.Argument(metavar="RULE", help="The rule's name.")],
    span: For,
    run: Annotated[str | None, typer.Option(help="For this run alone.")] = None,
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Keep a rule quiet for a while: it is judged and shown, and neither acts nor notifies."""
    _add(context, {"rule": rule, "run": run, "for_s": seconds_of(span), "why": why}, as_json)


def maintenance(
    context: typer.Context,
    span: For,
    begin: Annotated[
        str | None, typer.Option("--from", help="When it begins, RFC 3339; default now.")
    ] = None,
    run: Annotated[str | None, typer.Option(help="For this run alone.")] = None,
    node: Annotated[str | None, typer.Option(help="For runs on this node.")] = None,
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Keep all rules quiet for a while: no rule acts while people work on a run or a node."""
    body: dict[str, Any] = {"run": run, "node": node, "for_s": seconds_of(span), "why": why}
    if begin is not None:
        body["begins_at"] = _instant(begin)
    _add(context, body, as_json)


def silences(
    context: typer.Context,
    ended: Annotated[bool, typer.Option("--ended", help="Those that are over, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """List silences and maintenance windows."""
    session = session_of(context)
    found = session.api.get("/v1/silences", ended=True if ended else None)
    if as_json:
        session.output.json(found)
        return
    session.output.table(
        ["SILENCE", "RULE", "RUN", "NODE", "STATE", "FROM", "UNTIL", "BY", "WHY"],
        [
            [
                each["id"],
                each["rule"] or "all",
                each["run"] or "all",
                each["node"] or "all",
                each["state"],
                clock_text(each["begins_at"]),
                clock_text(each["ends_at"]),
                each["created_by"],
                each["why"],
            ]
            for each in found
        ],
        "Nothing is silenced.",
    )


def unsilence(
    context: typer.Context,
    silence: Annotated[int, typer.Argument(metavar="SILENCE", min=1, help="Its number.")],
    as_json: AsJson = False,
) -> None:
    """End a silence or a maintenance window now."""
    session = session_of(context)
    ended = session.api.delete(f"/v1/silences/{silence}")
    if as_json:
        session.output.json(ended)
        return
    session.output.line(f"Silence {silence} is over.")


def _add(context: typer.Context, body: dict[str, Any], as_json: bool) -> None:
    session = session_of(context)
    added = session.api.post(
        "/v1/silences", {name: value for name, value in body.items() if value is not None}
    )
    if as_json:
        session.output.json(added)
        return
    what = f"The rule {added['rule']!r}" if added["rule"] else "Every rule"
    where = [f"for run {added['run']}"] if added["run"] else []
    where += [f"on node {added['node']}"] if added["node"] else []
    since = f"from {clock_text(added['begins_at'])} " if added["state"] == "pending" else ""
    until = clock_text(added["ends_at"])
    sentence = " ".join([what, "is quiet", *where, f"{since}until {until} (silence {added['id']})"])
    session.output.line(f"{sentence}.")


def seconds_of(text: str) -> float:
    """Return the seconds that `2h`, `30m`, `1h30m` mean.

    Raises:
        UserError: it is none, or no time at all.
    """
    span = text.strip().lower()
    if _SPAN.fullmatch(span):
        seconds = sum(
            float(number) * _UNIT_S[unit]
            for number, unit in re.findall(r"(\d+(?:\.\d+)?)([smhd])", span)
        )
        if 0 < seconds < math.inf:
            return seconds
    raise UserError(f"--for: {text!r} is no span of time: write 90s, 30m, 2h, 1d, or 1h30m")


def _instant(text: str) -> str:
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None:
        raise UserError(
            f"--from: {text!r} is no instant: write 2026-03-01T12:00:00Z, with its offset"
        )
    return instant.isoformat()
