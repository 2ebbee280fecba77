"""Requests: asked once, waited for until the ranks acknowledge them, and told as they ended."""

from __future__ import annotations

import uuid
from typing import Any

from trainmaster.cli.pace import TERMINAL
from trainmaster.cli.session import Session, segment
from trainmaster.errors import ConflictError, TrainmasterError, UnavailableError

TIMEOUT_S = 600.0
PATIENCE_S = 5.0
AWAY_S = 60.0
SETTLE_S = 60.0
FINAL = frozenset({"applied", "refused"})
_LOOK_S = 0.2


def ask(session: Session, run: str, kind: str, args: dict[str, Any], why: str) -> dict[str, Any]:
    """Ask for something; the key makes asking twice the same as asking once."""
    body = {"kind": kind, "args": args, "why": why, "idempotency_key": uuid.uuid4().hex}
    path = f"/v1/runs/{segment('run', run)}/requests"
    try:
        answer: dict[str, Any] = session.api.post(path, body)
    except UnavailableError:
        session.sleep(1.0)
        answer = session.api.post(path, body)
    return answer


def conclude(
    session: Session,
    run: str,
    request: dict[str, Any],
    *,
    no_wait: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Print how a request ended, or with `no_wait` how far it is; see `acknowledged`."""
    if not no_wait:
        request = acknowledged(session, request, timeout_s)
    tell(session, run, request, as_json=as_json)


def acknowledged(session: Session, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """Return the request once it is applied.

    Raises:
        ConflictError: it was refused, and why.
        UnavailableError: the control plane stayed away for a minute.
        TrainmasterError: nothing came of it in time.
    """
    request = answered(session, request, timeout_s)
    if request["state"] == "refused":
        raise ConflictError(
            f"{request['kind']} was refused: {request.get('because') or 'no reason'}"
        )
    return request


def answered(session: Session, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """Return a request or a chore as it ended.

    Raises:
        UnavailableError: the control plane stayed away for a minute.
        TrainmasterError: nothing came of it in time.
    """
    began = seen_at = session.monotonic()
    told = False
    while request["state"] not in FINAL:
        now = session.monotonic()
        if now - began > timeout_s:
            raise TrainmasterError(
                f"{request['kind']} is still {request['state']} after {timeout_s:.0f} s; it stays "
                f"asked for (request {request['id']})"
            )
        if now - began > PATIENCE_S and not told:
            told = True
            session.output.say(
                f"{request['kind']} is {request['state']}; waiting for its acknowledgement "
                f"(Ctrl-C leaves it asked for)"
            )
        session.sleep(_LOOK_S)
        try:
            request = session.api.get(f"/v1/requests/{request['id']}")
            seen_at = session.monotonic()
        except UnavailableError:
            if session.monotonic() - seen_at > AWAY_S:
                raise
    return request


def settled(session: Session, run: str, wanted: str) -> None:
    """Wait until the run shows what its acknowledgement promised."""
    deadline = session.monotonic() + SETTLE_S
    while True:
        late = session.monotonic() > deadline
        try:
            state = session.api.get(f"/v1/runs/{segment('run', run)}")["state"]
        except UnavailableError:
            if late:
                raise
            session.sleep(_LOOK_S)
            continue
        if state == wanted:
            return
        if state in TERMINAL:
            raise ConflictError(f"the run {state} before it could be {wanted}")
        if late:
            raise TrainmasterError(f"the run is {state}, not {wanted}, {SETTLE_S:.0f} s after that")
        session.sleep(_LOOK_S)


def tell(session: Session, run: str, request: dict[str, Any], *, as_json: bool) -> None:
    """Print how a request ended."""
    if as_json:
        session.output.json(request)
        return
    because = f": {request['because']}" if request.get("because") else ""
    sentence = f"{request['kind']} of {run} {_stage(request)}{because}"
    session.output.line(sentence.rstrip(".") + ".")


def _stage(request: dict[str, Any]) -> str:
    if request["state"] != "applied":
        return f"is {request['state']} (request {request['id']})"
    return "is done"
