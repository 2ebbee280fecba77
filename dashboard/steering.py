"""What a person may ask of a run now, and how far what was asked has come."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote
from uuid import uuid4

from dashboard.data import Api, Json
from dashboard.formats import instant
from trainmaster.errors import ConflictError

Kind = Literal["pause", "hold", "resume", "checkpoint", "stop", "restore", "timeline"]

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
    "timeline": frozenset({"running"}),
    "restore": frozenset(
        {"running", "paused", "held", "unreachable", "failed", "stopped", "succeeded"}
    ),
}
VERBS: tuple[Kind, ...] = ("pause", "hold", "resume", "checkpoint", "stop")
_FINAL = frozenset({"applied", "refused"})
_MOVES = frozenset({"pause", "resume", "stop", "restore", "amend", "approve"})
_DECIDED_ON = ("state", "generation")
STALE = "stale_version"


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
    """Where this browser asks things of one run.

    The same button pressed twice is one request, until that request is done with: whether a person
    did so, or Streamlit, which may send a press twice when a part of the page looks again just
    then.
    """

    def __init__(self, api: Api, run: str, memory: MutableMapping[str, Any]) -> None:
        """Ask through `api`; `memory` outlives the page view."""
        self._api = api
        self._path = f"/v1/runs/{quote(run, safe='')}"
        self._keys: dict[str, str] = memory.setdefault(f"keys:{run}", {})
        self._asked: dict[str, str] = memory.setdefault(f"asked:{run}", {})

    def ask(self, kind: Kind, args: Mapping[str, Any], *, seen: Json, why: str = "") -> Json:
        """Ask for `kind` of the run as it was `seen`, and return the request as stored.

        The control plane refuses what was decided on an older version. Versions also move with what
        nobody decides on: if state and generation are still those seen, it is asked again.

        Raises:
            ConflictError: the run has changed, or its state does not allow it.
            TrainmasterError: refused, or out of reach.
        """
        what = f"{kind}:{sorted(args.items())}"
        request = self._ask(what, kind, args, seen, why)
        if is_final(request) and str(request["id"]) not in self._asked:
            # It was asked before, but no answer came: that one is over, and this one is another.
            del self._keys[what]
            request = self._ask(what, kind, args, seen, why)
        self._asked[str(request["id"])] = what
        return request

    def _ask(self, what: str, kind: Kind, args: Mapping[str, Any], seen: Json, why: str) -> Json:
        key = self._keys.setdefault(what, uuid4().hex)
        try:
            return self._post(kind, args, key, seen.get("version"), why)
        except ConflictError as error:
            now: Json = self._api.get(self._path)
            if error.code != STALE or any(now[name] != seen[name] for name in _DECIDED_ON):
                raise
            return self._post(kind, args, key, now.get("version"), why)

    def _post(
        self, kind: Kind, args: Mapping[str, Any], key: str, version: int | None, why: str
    ) -> Json:
        name, told = request_body(kind, args)
        body = {
            "kind": name,
            "args": told,
            "why": why,
            "idempotency_key": key,
            "expected_version": version,
        }
        request: Json = self._api.post(f"{self._path}/requests", body)
        return request

    def learn(self, requests: Sequence[Json]) -> None:
        """Take in how far requests have come; a finished one frees its button for the next."""
        for request in requests:
            if is_final(request):
                what = self._asked.pop(str(request["id"]), None)
                self._keys.pop(what or "", None)

    def others(self, requests: Sequence[Json]) -> list[Json]:
        """Return the requests that will move the run and were not asked in this browser."""
        return [
            each
            for each in requests
            if each.get("kind") in _MOVES
            and not is_final(each)
            and str(each["id"]) not in self._asked
        ]

    @property
    def waits(self) -> bool:
        """Whether anything asked here is not known to be finished."""
        return bool(self._asked)


def shown_as(request: Mapping[str, Any]) -> str:
    """Return the button that a request came from: to hold is a way to pause."""
    hold = request.get("kind") == "pause" and (request.get("args") or {}).get("hold")
    return "hold" if hold else str(request.get("kind"))


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


def ranks_told(request: Mapping[str, Any], run: Json) -> int | None:
    """Return how many ranks the order of a request speaks to: those of its generation, while that
    is the run's; rank 0 receives an order and tells it to the others at a step's end.
    """
    order = request.get("order") or {}
    ranks = run.get("ranks") or []
    is_current = order.get("generation") is not None and order["generation"] == run["generation"]
    return len(ranks) if is_current and ranks else None


def ranks_past(request: Mapping[str, Any], run: Json) -> int:
    """Return how many ranks have told of the step at which the request was carried out."""
    step = applied_step(request)
    if step is None:
        return 0
    return sum((rank.get("last_step") or 0) >= step for rank in run.get("ranks") or [])


def attempt_of_restore(request: Mapping[str, Any], run: Json) -> Json | None:
    """Return the attempt that a restore began; None before there is one."""
    checkpoint = (request.get("args") or {}).get("checkpoint")
    asked_at = instant(request.get("created_at"))
    for attempt in sorted(run.get("attempts") or [], key=lambda each: int(each["generation"])):
        began_at = instant(attempt.get("started_at"))
        if (
            attempt.get("cause_kind") == "restore"
            and attempt.get("resumed_from_checkpoint") == checkpoint
            and began_at is not None
            and (asked_at is None or began_at >= asked_at)
        ):
            return dict(attempt)
    return None


def first_new_step(attempt: Mapping[str, Any]) -> int | None:
    """Return the first step that an attempt did after the checkpoint it began from."""
    began, last = attempt.get("resumed_from_step"), attempt.get("last_step")
    return None if began is None or last is None or last <= began else int(began) + 1
