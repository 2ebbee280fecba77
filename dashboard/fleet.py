"""Which of many runs are shown, in which order, and what is told of each. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from dashboard import states
from dashboard.data import Json
from dashboard.formats import instant
from dashboard.sought import holds

Count = Literal["one", "all", "found", "first"]
Group = Literal["active", "attention", "waiting", "ended"]
GROUPS: tuple[Group, ...] = ("active", "attention", "waiting", "ended")
_WAITING = frozenset({"queued", "paused", "held"})

Order = Literal["newest", "attention", "name", "progress", "loss", "speed", "eta"]
ORDERS: tuple[Order, ...] = ("newest", "attention", "name", "progress", "loss", "speed", "eta")
MOST_SHOWN = 200
_LAST = float("inf")


def eta_s(run: Json, now: datetime) -> float | None:
    """Return how long the rest takes at the newest pace, None where nothing moves."""
    pace, step, target = run.get("pace_s"), run.get("step"), run.get("target_steps")
    if run.get("state") != "running" or not pace or step is None or not target:
        return None
    newest = instant(run.get("last_point_at"))
    since = 0.0 if newest is None else min(float(pace), max(0.0, (now - newest).total_seconds()))
    return max(0.0, (int(target) - int(step)) * float(pace) - since)


def wrong_since(run: Json, firing: Sequence[Json]) -> datetime | None:
    """Return since when something is wrong with a run: its first alert that fires, or its state."""
    known = [at for alert in firing if (at := instant(alert.get("since"))) is not None]
    if known:
        return min(known)
    return (
        instant(run.get("state_since")) if run.get("state") in {"failed", "unreachable"} else None
    )


def groups_of(run: Json, firing: Sequence[Json]) -> frozenset[Group]:
    """Return the groups that a run belongs to."""
    state = str(run.get("state"))
    found: set[Group] = set()
    if state in states.TERMINAL:
        found.add("ended")
    elif state in _WAITING:
        found.add("waiting")
    else:
        found.add("active")
    if firing or run.get("unreadable") or state in {"failed", "unreachable", "recovering"}:
        found.add("attention")
    return frozenset(found)


def chosen(
    runs: Sequence[Json],
    alerts: Mapping[str, Sequence[Json]],
    *,
    group: Group | None,
    tags: Sequence[str],
    sought: str,
    text: Callable[[Json], str],
) -> list[Json]:
    """Return the runs of a group that have all of `tags` and hold what is sought in their text."""
    return [
        run
        for run in runs
        if (group is None or group in groups_of(run, alerts.get(str(run["id"]), ())))
        and set(tags) <= set(run.get("tags") or ())
        and holds(text(run), sought)
    ]


def ordered(
    runs: Sequence[Json], alerts: Mapping[str, Sequence[Json]], order: Order, now: datetime
) -> list[Json]:
    """Return runs, which come newest first, in another order; what it says nothing of is last."""
    if order == "newest":
        return list(runs)

    def key(run: Json) -> Any:
        mine = alerts.get(str(run["id"]), ())
        match order:
            case "attention":
                since = wrong_since(run, mine)
                needs = "attention" in groups_of(run, mine)
                return (not needs, not mine, -since.timestamp() if since else 0.0)
            case "name":
                return str(run.get("name") or run["id"]).casefold()
            case "progress":
                return -float(run.get("step") or 0) / float(run.get("target_steps") or _LAST)
            case "loss":
                return _number(run.get("loss"), _LAST)
            case "speed":
                return -_number(run.get("tokens_per_s"), 0.0)
            case _:
                left = eta_s(run, now)
                return _LAST if left is None else left

    return sorted(runs, key=key)


def tags_of(runs: Sequence[Json]) -> list[str]:
    """Return all tags of runs, by name."""
    return sorted({str(tag) for run in runs for tag in run.get("tags") or ()})


def read_tags(text: str) -> list[str]:
    """Return the tags that a person has written with commas between them."""
    return list(dict.fromkeys(tag for part in text.split(",") if (tag := part.strip())))


def _number(value: Any, otherwise: float) -> float:
    """Return a number to sort by; words such as NaN, and nothing, are `otherwise`."""
    return float(value) if isinstance(value, int | float) else otherwise


def newest_point(run: Json) -> datetime | None:
    """Return when the newest step of a run was seen, as far as its ranks tell."""
    seen = [rank.get("last_seen_at") for rank in run.get("ranks") or []]
    told = [run.get("last_point_at"), *seen]
    return max((at for at in map(instant, told) if at is not None), default=None)


def count_told(shown: int, found: int, everything: int) -> Count:
    """Return in which words it is told how many runs there are, are found, and are shown."""
    if shown < found:
        return "first"
    if found < everything:
        return "found"
    return "one" if everything == 1 else "all"
