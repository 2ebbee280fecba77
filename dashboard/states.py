"""States as icon, word and tone: never as a colour alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

from dashboard.i18n import Translator
from dashboard.widgets.table import Tone


@dataclass(frozen=True, slots=True)
class Look:
    """How a state is shown beside its word."""

    icon: str
    tone: Tone


_UNKNOWN = Look("·", "quiet")

RUN: Mapping[str, Look] = {
    "queued": Look("…", "quiet"),
    "starting": Look("◌", "quiet"),
    "running": Look("▶", "good"),
    "recovering": Look("↻", "warn"),
    "pausing": Look("◌", "warn"),
    "paused": Look("⏸", "warn"),
    "held": Look("⏸", "warn"),
    "unreachable": Look("?", "bad"),
    "stopping": Look("◌", "warn"),
    "stopped": Look("■", "quiet"),
    "succeeded": Look("✔", "good"),
    "failed": Look("✖", "bad"),
}
CHECKPOINT: Mapping[str, Look] = {
    "writing": Look("◌", "quiet"),
    "committed": Look("○", ""),
    "trusted": Look("✔", "good"),
    "quarantined": Look("✖", "bad"),
    "retired": Look("–", "quiet"),
}
ALERT: Mapping[str, Look] = {
    "pending": Look("◌", "warn"),
    "firing": Look("▲", "bad"),
    "resolved": Look("✔", "quiet"),
}
INCIDENT: Mapping[str, Look] = {
    "open": Look("▲", "bad"),
    "verifying": Look("◌", "warn"),
    "waiting": Look("…", "warn"),
    "closed": Look("✔", "quiet"),
}
NODE: Mapping[str, Look] = {
    "present": Look("✔", "good"),
    "late": Look("◌", "warn"),
    "lost": Look("✖", "bad"),
}
SEVERITY: Mapping[str, Look] = {
    "info": Look("i", "quiet"),
    "warning": Look("▲", "warn"),
    "critical": Look("▲", "bad"),
}

TERMINAL: frozenset[str] = frozenset({"stopped", "succeeded", "failed"})
"""States in which nothing moves by itself."""

SILENT: frozenset[str] = TERMINAL | {"queued", "paused", "held"}
"""States in which no new point is expected."""


def look(group: Mapping[str, Look], state: str) -> Look:
    """Return the look of a state; one that a newer control plane tells is shown plainly."""
    return group.get(state, _UNKNOWN)


def state_html(state: str, t: Translator) -> str:
    """Return the state of a run as a pill."""
    shown = look(RUN, state)
    word = escape(t.word("run.state", state))
    return (
        f'<span class="tm-state tm-state-{shown.tone or "quiet"}" data-state="{escape(state)}">'
        f'<span aria-hidden="true">{shown.icon}</span>{word}</span>'
    )
