"""Which events people are told of, and in which words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from control.decision import NewEvent

SEVERITIES: Final = ("info", "warning", "critical")


@dataclass(frozen=True, slots=True)
class Notice:
    """What people are told.

    Attributes:
        key: the same for what is told twice.
        channels: to which channels alone, by name; None leaves it to the channels.
        about: what flaps when it comes again and again; None for what cannot.
    """

    key: str
    kind: str
    severity: str
    title: str
    body: str
    channels: tuple[str, ...] | None = None
    about: str | None = None


_SEVERITY: Final[Mapping[str, str]] = {
    "alert_flapping": "info",
    "alert_resolved": "info",
    "incident_waiting": "critical",
    "incident_closed": "info",
    "run_failed": "critical",
    "run_unreachable": "warning",
    "run_succeeded": "info",
    "checkpoint_failed": "warning",
    "node_excluded": "warning",
}
_TITLE: Final[Mapping[str, str]] = {
    "alert_firing": "{rule} fires",
    "alert_flapping": "{rule} flaps",
    "alert_resolved": "{rule} is over",
    "incident_waiting": "{rule} asks: {action}?",
    "incident_closed": "incident {closed_as}",
    "run_failed": "the run failed",
    "run_unreachable": "the run is out of contact",
    "run_succeeded": "the run succeeded",
    "checkpoint_failed": "no checkpoint could be taken",
    "node_excluded": "a node is excluded",
    "rule_acted": "notice",
}


def notice_of(run: str, generation: int, event: NewEvent) -> Notice | None:
    """Return what people are told of an event; None for those of which they are told nothing, and
    of a silenced rule.
    """
    data = event.data
    title = _TITLE.get(event.kind)
    if title is None or data.get("silenced"):
        return None
    if event.kind == "rule_acted" and data.get("action") != "notify":
        return None
    told = _Words(rule="a rule", action="act", closed_as="closed")
    told.update({name: str(value) for name, value in data.items()})
    which = [data.get(name) for name in ("rule", "scope", "first_bad_step", "incident", "step")]
    return Notice(
        key=":".join(str(each) for each in (run, generation, event.kind, *which))[:400],
        kind=event.kind,
        severity=_severity(event),
        title=title.format_map(told)[:300],
        body=event.because[:4000],
        channels=_channels(data),
        about=str(data.get("rule")) if event.kind == "alert_firing" else None,
    )


class _Words(dict[str, str]):
    """Words of a title; one that an event lacks is left out."""

    def __missing__(self, key: str) -> str:
        return ""


def _severity(event: NewEvent) -> str:
    told = event.data.get("severity", _SEVERITY.get(event.kind, "warning"))
    return told if told in SEVERITIES else "warning"


def _channels(data: Mapping[str, Any]) -> tuple[str, ...] | None:
    named = data.get("channels")
    return tuple(str(each) for each in named) if named else None


def flapping(run: str, about: str, hour: int, count: int) -> Notice:
    """Return the one notice that stands for all further firings of a rule within an hour."""
    return Notice(
        key=f"{run}:flapping:{about}:{hour}"[:400],
        kind="alert_flapping",
        severity="warning",
        title=f"{about} fires again and again"[:300],
        body=f"The rule {about!r} has fired {count} times within an hour. Further firings within "
        "this hour are shown, and not told; silence it, or raise its threshold or its `for`.",
    )


def reaches(severity: str, least: str) -> bool:
    """Return whether something of `severity` is told where at least `least` is asked for."""
    return SEVERITIES.index(severity) >= SEVERITIES.index(least)
