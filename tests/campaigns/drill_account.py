"""What a drill came to: when it was noticed and by what, what was done, and what it cost."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.scenarios.ring import Ring
from trainmaster.client import Client
from trainmaster.home import Home

MOST_UNACCOUNTED = 0.005
"""How far the buckets of a run's wall time may be from their sum, and the sum from the clock."""

Json = dict[str, Any]


@dataclass(frozen=True)
class Sign:
    """The event by which a fault counts as noticed: the first of these kinds after it, of the rule
    where one is named.
    """

    kinds: tuple[str, ...]
    rule: str | None = None

    def is_shown_by(self, event: Mapping[str, Any]) -> bool:
        told = event["data"].get("rule")
        return event["kind"] in self.kinds and self.rule in {None, told}


@dataclass(frozen=True)
class Account:
    """One drill as it went.

    Attributes:
        noticed, noticed_after_s: the event, and how long after the fault it was stored.
        done: what was done about it, in a few words.
        mttr_s: from the last step before the fault to the first one after it, where steps stopped.
        closed_after_s: for how long its incident was open, where there was one.
        buckets: where the wall time went, seconds; those that are not empty.
        off_ratio: how far the buckets are from the wall time by the clock.
        ladder: the attempts of a run that needed several, a line each.
        because: what the run says of its end.
        wrong: what was not as it should be, a sentence each.
    """

    fault: str
    noticed: str
    noticed_after_s: float | None
    done: str
    mttr_s: float | None
    closed_after_s: float | None
    lost_steps: int
    generations: int
    end: str
    wall_s: float
    productive_ratio: float
    off_ratio: float
    buckets: Mapping[str, float]
    because: str
    ladder: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    measured_at: str = ""
    load: tuple[float, ...] = field(default_factory=os.getloadavg)

    def to_json(self) -> Json:
        return asdict(self)


def account_of(
    ring: Ring, run: str, fault: str, at: datetime, sign: Sign, wrong: tuple[str, ...]
) -> Account:
    """Return what became of `run`, which has ended.

    Args:
        at: when the fault happened, by the machine's clock.
    """
    token = Home(ring.home).token()
    with Client(ring.environment["TRAINMASTER_URL"], token, timeout_s=60) as client:
        shown = dict(client.get(f"/v1/runs/{run}"))
        spent = dict(client.get(f"/v1/runs/{run}/goodput"))
        cost = dict(client.get(f"/v1/runs/{run}/recoveries"))
        incidents = list(client.get(f"/v1/runs/{run}/incidents"))
    signs = shown_after(ring, run, sign, at)
    seen = signs[0] if signs else None
    closed = [each["mttr_s"] for each in incidents if each["mttr_s"] is not None]
    buckets = {
        name: seconds
        for name, seconds in spent.items()
        if name not in {"wall_s", "productive_ratio"} and seconds > 0
    }
    by_clock_s = (instant(shown["ended_at"]) - instant(shown["created_at"])).total_seconds()
    off = max(abs(sum(buckets.values()) - spent["wall_s"]), abs(by_clock_s - spent["wall_s"])) / (
        spent["wall_s"] or 1
    )
    if off > MOST_UNACCOUNTED:
        wrong = (*wrong, f"the buckets are {off:.2%} off the wall time: {spent}")
    if seen is None:
        wrong = (*wrong, f"it was not noticed by {' or '.join(sign.kinds)}")
    return Account(
        fault=fault,
        noticed=_named(signs),
        noticed_after_s=None if seen is None else (instant(seen["at"]) - at).total_seconds(),
        done=_done(shown, incidents, warned=seen is not None and seen["kind"] == "alert_firing"),
        mttr_s=cost["mttr_p50_s"],
        closed_after_s=max(closed, default=None),
        lost_steps=cost["lost_steps"],
        generations=shown["generation"],
        end=" ".join(filter(None, (shown["state"], shown["code"]))),
        wall_s=spent["wall_s"],
        productive_ratio=spent["productive_ratio"],
        off_ratio=off,
        buckets=buckets,
        because=shown["because"],
        ladder=tuple(_rung(each) for each in shown["attempts"][1:]),
        wrong=wrong,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def shown_after(ring: Ring, run: str, sign: Sign, after: datetime) -> list[Json]:
    """Return the events after an instant that show `sign`, oldest first."""
    return [
        each for each in ring.events(run) if sign.is_shown_by(each) and instant(each["at"]) >= after
    ]


def fired_at(ring: Ring, run: str) -> datetime | None:
    """Return when the first drill of a run fired, None before it has."""
    fired = [instant(each["at"]) for each in ring.events(run, "drill_fired")]
    return min(fired, default=None)


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _named(signs: list[Json]) -> str:
    """Return the first event and, of a rule that names members, whom it named, in order."""
    if not signs:
        return "-"
    rule = signs[0]["data"].get("rule")
    if rule is None:
        return f"`{signs[0]['kind']}`"
    scopes = dict.fromkeys(each["data"].get("scope") or "run" for each in signs)
    named = ", ".join(scopes)
    return f"alert `{rule}`" + (f" ({named})" if named != "run" else "")


def _done(shown: Json, incidents: list[Json], *, warned: bool) -> str:
    """Return the actions of rules, and else what followed."""
    actions = [action["action"] for each in incidents for action in each["actions"]]
    if actions:
        return ", ".join(f"{name} x {actions.count(name)}" for name in dict.fromkeys(actions))
    later = shown["attempts"][1:]
    if later:
        return f"went on from step {later[-1]['resumed_from_step']}"
    return "warned" if warned else "nothing"


def _rung(attempt: Json) -> str:
    skipped = ", ".join(f"{first} to {last}" for first, last in attempt["skip"])
    parts = [
        f"generation {attempt['generation']} from step {attempt['resumed_from_step']}",
        f"batches {skipped} skipped" if skipped else "",
        f"learning rate x {attempt['lr_factor']}" if attempt["lr_factor"] not in {None, 1} else "",
    ]
    return f"{', '.join(filter(None, parts))}: {attempt['cause']}"
