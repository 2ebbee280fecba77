"""The story of an incident: its first sign, what was decided and why, and what came of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from dashboard.data import Json
from dashboard.formats import instant

Part = Literal["sign", "beside", "event", "tried", "answered", "asked", "probation", "end"]
ACTIONS = (
    "skip",
    "rollback",
    "checkpoint",
    "hold",
    "stop",
    "restart",
    "degrade",
    "rebalance",
    "cordon",
    "dump_stacks",
    "notify",
)
"""What a person may approve instead of what a rule proposes."""


@dataclass(frozen=True, slots=True)
class Chapter:
    """Something that happened to an incident.

    Attributes:
        part: sign: where it began; beside: another alert of it; event: what the control plane told;
            tried: an action that has shown whether it helps; answered: that the ranks have taken
            it; asked: what waits for an answer; probation: what must be seen before it is believed;
            end.
        kind: of an event its kind, of what was tried its action.
        at: RFC 3339, None where nobody wrote it down.
        because: a sentence of the control plane's.
        helped: of what was tried; None where it is not known yet.
        rejected: of what was tried, what was not chosen instead, and why not.
    """

    part: Part
    kind: str = ""
    at: str | None = None
    step: int | None = None
    because: str = ""
    helped: bool | None = None
    rejected: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Term:
    """What must be seen before an action is believed: the key of the sentence, and its values."""

    name: str
    values: Mapping[str, str]


def story(incident: Json, events: Sequence[Json]) -> list[Chapter]:
    """Return the chapters of an incident, the first sign first.

    Args:
        events: of its run; those that are about other things are passed over.
    """
    name = incident.get("id")
    about = [each for each in events if (each.get("data") or {}).get("incident") == name]
    closing = [each for each in about if each.get("kind") == "incident_closed"]
    told = [
        Chapter(
            "event",
            str(each.get("kind")),
            each.get("at"),
            because=str(each.get("because") or ""),
        )
        for each in sorted(about, key=lambda each: int(each["id"]))
        if each not in closing
    ]
    chapters = [
        Chapter(
            "sign",
            str(incident.get("rule") or ""),
            incident.get("opened_at"),
            step=incident.get("first_bad_step"),
        ),
        *_beside(incident),
        *sorted(
            [*told, *map(_tried, incident.get("actions") or []), *_answered(incident, events)],
            key=_when,
        ),
    ]
    proposed = incident.get("proposed")
    if proposed:
        chapters.append(_asked(proposed))
    elif incident.get("state") == "verifying":
        chapters.append(Chapter("probation"))
    if incident.get("closed_at"):
        because = str(incident.get("because") or "")
        chapters.append(
            Chapter("end", str(incident.get("closed_as")), incident["closed_at"], because=because)
        )
    elif not told and not proposed and incident.get("because"):
        chapters.insert(1, Chapter("event", "", because=str(incident["because"])))
    return chapters


def _beside(incident: Json) -> list[Chapter]:
    """Return the other alerts that belong to the incident."""
    others = [each for each in incident.get("alerts") or () if each["rule"] != incident.get("rule")]
    return [
        Chapter(
            "beside",
            str(each["rule"]) + ("" if each["scope"] == "run" else f" ({each['scope']})"),
            step=each.get("first_bad_step"),
        )
        for each in others
    ]


def _tried(action: Json) -> Chapter:
    return Chapter(
        "tried",
        str(action.get("action")),
        action.get("at"),
        because=str(action.get("outcome") or details(action)),
        helped=action.get("helped"),
        rejected=tuple(
            f"{each.get('checkpoint')} {each.get('why')}" for each in action.get("rejected") or ()
        ),
    )


_TAKEN_UP = frozenset({"checkpoint_restored", "run_running"})
"""Events that show that ranks do as an action has said."""


def _answered(incident: Json, events: Sequence[Json]) -> list[Chapter]:
    """Return when the ranks took up each action that began another attempt."""
    ordered = sorted(events, key=lambda each: int(each["id"]))
    firsts = [_first_after(action, ordered) for action in incident.get("actions") or []]
    return [
        Chapter("answered", str(each["kind"]), each["at"], because=str(each.get("because") or ""))
        for each in firsts
        if each is not None
    ]


def _first_after(action: Json, events: Sequence[Json]) -> Json | None:
    """Return the first event of the next attempt that shows that its ranks have begun."""
    generation, since = action.get("generation"), instant(action.get("at"))
    if generation is None or since is None:
        return None
    for each in events:
        at = instant(each.get("at"))
        is_next = each.get("generation") == generation + 1 and each.get("kind") in _TAKEN_UP
        if is_next and at is not None and at >= since:
            return each
    return None


def _asked(proposed: Json) -> Chapter:
    action = proposed.get("action") or {}
    return Chapter(
        "asked",
        str(action.get("action")),
        proposed.get("at"),
        because=str(proposed.get("because") or ""),
    )


def _when(chapter: Chapter) -> datetime:
    return instant(chapter.at) or datetime.max.replace(tzinfo=UTC)


_TOLD_ELSEWHERE = frozenset(
    {"action", "at", "rule", "scope", "generation", "helped", "outcome", "rejected"}
)


def details(action: Mapping[str, Any]) -> str:
    """Return what an incident remembers of an action, beside its name, as `key value, ...`."""
    return ", ".join(
        f"{key} {value}"
        for key, value in action.items()
        if key not in _TOLD_ELSEWHERE and value not in (None, "", [], {})
    )


def terms(verification: Mapping[str, Any]) -> list[Term]:
    """Return what an action is measured against, and how far it has come."""
    found = []
    needed, healthy = verification.get("needed"), verification.get("healthy_steps")
    if needed is not None:
        found.append(Term("steps", {"needed": str(needed), "healthy": str(healthy or 0)}))
    band = verification.get("loss_band")
    if band:
        found.append(Term("loss", {"low": f"{band[0]:.4g}", "high": f"{band[1]:.4g}"}))
    bounds = ("grad_norm_below", "step_time_at_most_s")
    return found + [
        Term(name, {"bound": f"{verification[name]:.4g}"})
        for name in bounds
        if verification.get(name) is not None
    ]
