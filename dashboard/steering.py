"""What a person may ask of a run now, and how far what was asked has come."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote
from uuid import uuid4

from dashboard.data import Api, Json

Kind = Literal["pause", "hold", "resume", "checkpoint", "stop", "restore"]

_FROM: Mapping[str, frozenset[str]] = {
    "pause": frozenset({"queued", "starting", "running", "recovering", "held"}),
    "hold": frozenset({"running"}),
    "resume": frozenset({"paused", "held", "stopped", "failed"}),
    "checkpoint": frozenset({"running", "held"}),
    "stop": frozenset(
        {
            "queued",
            "starting",
            "running",
            "recovering",
            "pausing",
            "paused",
            "held",
            "unreachable",
            "stopping",
        }
    ),
    "restore": frozenset(
        {"running", "paused", "held", "unreachable", "failed", "stopped", "succeeded"}
    ),
}
VERBS: tuple[Kind, ...] = ("pause", "hold", "resume", "checkpoint", "stop")
_FINAL = frozenset({"applied", "refused"})


@dataclass(frozen=True, slots=True)
class Verb:
    """A button: whether it can be pressed, and if not, the key of the sentence that says why."""

    kind: Kind
    enabled: bool
    reason: str = ""


def verb(kind: Kind, state: str, role: str | None) -> Verb:
    """Return whether `kind` can be asked of a run in `state` by someone with `role`."""
    if role == "viewer":
        return Verb(kind, enabled=False, reason="steer.why.viewer")
    if state not in _FROM[kind]:
        return Verb(kind, enabled=False, reason=f"steer.why.{kind}")
    return Verb(kind, enabled=True)


def request_body(kind: Kind, args: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the kind and arguments under which the API knows a button: hold is a way to pause."""
    if kind == "hold":
        return "pause", {**args, "hold": True}
    return kind, dict(args)


class Desk:
    """What this browser has asked of one run; kept in the session.

    The same button pressed twice on what was seen as the same version is one request.
    """

    def __init__(self, api: Api, run: str, memory: MutableMapping[str, Any]) -> None:
        """Ask through `api`; `memory` outlives the page view."""
        self._api = api
        self._run = run
        self._keys: dict[str, str] = memory.setdefault(f"ask-keys:{run}", {})
        self.asked: dict[str, Json] = memory.setdefault(f"asked:{run}", {})

    def ask(
        self, kind: Kind, args: Mapping[str, Any], *, version: int | None, why: str = ""
    ) -> Json:
        """Ask, and return the request as stored.

        Raises:
            ConflictError: the run has changed since `version`, or its state does not allow it.
            TrainmasterError: refused, or out of reach.
        """
        what = f"{kind}:{version}:{sorted(args.items())}"
        key = self._keys.setdefault(what, uuid4().hex)
        name, told = request_body(kind, args)
        request: Json = self._api.post(
            f"/v1/runs/{quote(self._run, safe='')}/requests",
            {
                "kind": name,
                "args": told,
                "why": why,
                "idempotency_key": key,
                "expected_version": version,
            },
        )
        self.asked[str(request["id"])] = {**request, "shown_as": kind, "what": what}
        return request

    def learn(self, request: Json) -> None:
        """Take in how far a request has come; a finished one frees its button for the next."""
        known = self.asked[str(request["id"])]
        known.update(request)
        if is_final(known):
            self._keys.pop(known["what"], None)

    @property
    def open(self) -> list[str]:
        """Ids of requests that are not finished."""
        return [id_ for id_, request in self.asked.items() if not is_final(request)]


def is_final(request: Mapping[str, Any]) -> bool:
    """Whether nothing more will become of the request."""
    return request.get("state") in _FINAL


def progress(request: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the stations reached so far: sent, received, and applied or refused."""
    order = request.get("order") or {}
    state, order_state = request.get("state"), order.get("state")
    if state == "refused" or order_state == "refused":
        return ("sent", "refused")
    if state == "applied":
        return ("sent", "received", "applied")
    received = order_state in {"received", "applied"} or (state == "accepted" and not order)
    return ("sent", "received") if received else ("sent",)


def applied_step(request: Mapping[str, Any]) -> int | None:
    """Return the step at which the request was carried out, where it was one of the ranks'."""
    order = request.get("order") or {}
    step = request.get("step") if request.get("step") is not None else order.get("step")
    return None if step is None else int(step)
