"""What will happen to a run next without a person, as far as the API tells. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from dashboard import states
from dashboard.data import Json
from dashboard.formats import instant

Kind = Literal["answer", "probation", "checkpoint", "end", "nothing", "room", "lost", "waits"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Coming:
    """One thing to come.

    Attributes:
        step: the step at which it comes at the earliest; None where it does not come at a step.
        at: the instant, in RFC 3339, that the sentence names.
        seconds: the time that the sentence names.
        words: names that the sentence says.
    """

    kind: Kind
    step: int | None = None
    at: str | None = None
    seconds: float | None = None
    words: Mapping[str, str] = field(default_factory=dict)


def coming(run: Json, incidents: Sequence[Json], nodes: Sequence[Json]) -> list[Coming]:
    """Return what comes next, the most pressing first.

    Args:
        incidents: of the run.
        nodes: all that are known.
    """
    state = run.get("state")
    if state == "succeeded":
        return []
    asks = sorted(
        (each for each in map(_answer, incidents) if each is not None),
        key=lambda each: each.at or "",
    )
    if state == "running":
        return [*asks, *_probations(run, incidents), *_steps(run)]
    if state == "queued":
        return [*asks, Coming("room")]
    if state == "unreachable":
        return [*asks, _lost(run, nodes)]
    if state in states.SILENT:
        return [*asks, Coming("nothing")]
    return asks


def _answer(incident: Json) -> Coming | None:
    proposed = incident.get("proposed")
    if incident.get("closed_at") or not proposed or not proposed.get("answer_by"):
        return None
    words = {"rule": str(incident.get("rule")), "then": str(proposed.get("then"))}
    return Coming("answer", at=str(proposed["answer_by"]), words=words)


def _probations(run: Json, incidents: Sequence[Json]) -> list[Coming]:
    found = []
    for incident in incidents:
        terms = incident.get("verification") or {}
        if incident.get("state") != "verifying" or terms.get("needed") is None:
            continue
        left = max(0, int(terms["needed"]) - int(terms.get("healthy_steps") or 0))
        words = {"rule": str(incident.get("rule")), "left": str(left)}
        found.append(Coming("probation", step=int(run.get("step") or 0) + left, words=words))
    return found


def _steps(run: Json) -> list[Coming]:
    """Return the next checkpoint, or the end where none comes before it."""
    step, target = int(run.get("step") or 0), run.get("target_steps")
    interval = run.get("checkpoint_interval") or {}
    every, origin = interval.get("every_steps"), int(interval.get("from_step") or 0)
    due = None if not every else step + every - (step - origin) % every
    if due is not None and (target is None or due < target):
        return [Coming("checkpoint", step=due)]
    return [] if target is None else [Coming("end", step=int(target))]


def _lost(run: Json, nodes: Sequence[Json]) -> Coming:
    """Return what becomes of a run with nodes out of contact: nothing, unless its spec says so."""
    recovery = (run.get("spec") or {}).get("recovery") or {}
    patience_s = recovery.get("unreachable_after_s")
    own = {str(rank.get("node")) for rank in run.get("ranks") or []}
    silent = [
        (heard, str(each["id"]), str(each["last_seen_at"]))
        for each in nodes
        if str(each["id"]) in own
        and each.get("state") != "present"
        and (heard := instant(each.get("last_seen_at")))
    ]
    if patience_s is None or not silent:
        return Coming("waits")
    _, node, last_seen_at = min(silent)
    return Coming(
        "lost",
        at=last_seen_at,
        seconds=float(patience_s),
        words={"node": node},
    )
