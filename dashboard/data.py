"""What pages read: the API's answers, and the last good ones while it is away."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from urllib.parse import quote

from dashboard.formats import instant
from trainmaster.errors import NotFoundError, UnavailableError

Json = dict[str, Any]
Scalar = str | int | float | bool
Query = tuple[tuple[str, Scalar], ...]
Fetch = Callable[[str, Query, str], Any]
"""Reads what is at a path: with a body, in JSON, what a post there answers."""

Memory = MutableMapping[tuple[str, Query], Any]

MOST_POINTS = 2000
MOST_EVENTS = 200
EVENTS_A_PAGE = 1000
MOST_RUNS = 500
MOST_IN_FLEET = 5000
MOST_AT_ONCE = 4
"""Questions after series that one look takes along."""
LOOK_HOLDS_S = 1.0
"""For how long what a look told is taken as it is."""

_MOST_REMEMBERED = 200
_OF_RUN = ("alerts", "incidents", "checkpoints", "requests", "newest_event")


class Api(Protocol):
    """What the dashboard needs of `trainmaster.client.Client`."""

    def get(self, path: str, **query: Scalar | None) -> Any: ...

    def put(self, path: str, body: Any, *, headers: dict[str, str] | None = None) -> Any: ...

    def post(
        self, path: str, body: Any = None, *, headers: dict[str, str] | None = None
    ) -> Any: ...

    def delete(self, path: str) -> Any: ...


@dataclass(frozen=True, slots=True)
class _Look:
    """What a look at a run told: `answers` by path, query and body."""

    at: float
    answers: Mapping[tuple[str, Query, str], Any]
    outage: UnavailableError | None


class Reader:
    """Reads for one page view.

    While the control plane is away, what was last read is read again, and `outage` says why.
    """

    def __init__(
        self,
        fetch: Fetch,
        memory: Memory,
        *,
        look_holds_s: float = LOOK_HOLDS_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read through `fetch`, which may share answers; `memory` outlives this page view.

        Args:
            look_holds_s: for how long what a look told is taken as it is.
        """
        self._look_holds_s = look_holds_s
        self._fetch = fetch
        self._memory = memory
        self._monotonic = monotonic
        self._looks: dict[str, _Look] = {}
        self.outage: UnavailableError | None = None

    def get(self, path: str, **query: Scalar | None) -> Any:
        """Return the answer at `path`.

        Raises:
            UnavailableError: the control plane is away, and this has not been read before.
            TrainmasterError: it refuses.
        """
        key = (path, _query(query))
        try:
            answer = self._ask(*key, "")
        except UnavailableError:
            if key in self._memory:
                return self._memory[key]
            raise
        self._remember(key, answer)
        return answer

    def _remember(self, key: tuple[str, Query], answer: Any) -> None:
        self._memory.pop(key, None)
        self._memory[key] = answer
        while len(self._memory) > _MOST_REMEMBERED:
            del self._memory[next(iter(self._memory))]

    def _ask(self, path: str, query: Query, body: str) -> Any:
        for look in filter(self._holds, self._looks.values()):
            if (path, query, body) in look.answers:
                return look.answers[path, query, body]
            if look.outage is not None:
                raise look.outage  # nobody waits for it twice
        try:
            return self._fetch(path, query, body)
        except UnavailableError as error:
            self.outage = error
            raise

    def look(self, run: str, series: Sequence[Json] = ()) -> None:
        """Read at once what the page of a run shows; what is asked for here during the next second
        comes from that.

        Args:
            series: what will be asked of its series (`several_body`), the first `MOST_AT_ONCE`.

        Raises:
            UnavailableError: the control plane is away, and the run has not been looked at before.
            TrainmasterError: it refuses.
        """
        before = self._looks.get(run)
        if not series and before is not None and self._holds(before):
            self.outage = before.outage
            return
        self._looks.pop(run, None)
        place = (_of_run(run, "look"), ())
        known: dict[str, Json] = self._memory.get(place) or {}
        versions = {name: part["version"] for name, part in known.items()}
        wanted = list(series[:MOST_AT_ONCE])
        outage = None
        answers: dict[tuple[str, Query, str], Any] = {}
        try:
            body = json.dumps({"known": versions, "series": wanted})
            told = self._ask(*place, body)
        except NotFoundError:
            return  # no such run, or a control plane of an older release: each part says which
        except UnavailableError as error:
            if error.code == "unreadable":
                return  # one part: the others can be read
            if not known:
                raise
            outage = error
        else:
            known = {
                name: part if "answer" in part else {**part, "answer": known[name]["answer"]}
                for name, part in told["parts"].items()
            }
            self._remember(place, known)
            for asked, answer in zip(wanted, told["series"], strict=True):
                answers[_of_run(run, "series"), (), json.dumps(asked)] = answer
        for name, part in known.items():
            answers[_path_of(run, name), (), ""] = part["answer"]
        self._looks[run] = _Look(self._monotonic(), answers, outage)

    def _holds(self, look: _Look) -> bool:
        return self._monotonic() - look.at < self._look_holds_s

    def forget(self) -> None:
        """Read anew what was read a moment ago."""
        self._looks.clear()

    def versions(self, run: str) -> Mapping[str, str]:
        """Return the version of each part of the last look at a run, if there was one."""
        known = self._memory.get((_of_run(run, "look"), ())) or {}
        return {name: str(part["version"]) for name, part in known.items()}

    def known_run(self, run: str) -> Json | None:
        """Return a run as the last look at it told, if there was one."""
        known = self._memory.get((_of_run(run, "look"), ())) or {}
        answer: Json | None = known["run"]["answer"] if "run" in known else None
        return answer

    def newest_event(self, run: str) -> int | None:
        """Return the number of the run's newest event."""
        path = _of_run(run, "newest_event")
        for look in self._looks.values():
            if (path, (), "") in look.answers:
                newest: int | None = look.answers[path, (), ""]
                return newest
        return next((int(event["id"]) for event in self.events(run, most=1)), None)

    def runs(self) -> list[Json]:
        """Return all runs, newest first."""
        return list(reversed(_items(self.get("/v1/runs", limit=MOST_RUNS))))

    def fleet(self, *, archived: bool) -> list[Json]:
        """Return runs as the fleet shows them, newest first: the archive, or the others."""
        found = self.get("/v1/runs", limit=MOST_IN_FLEET, archived=archived, more=True)
        return list(reversed(_items(found)))

    def run(self, run: str) -> Json:
        """Return one run as `show` tells it."""
        answer: Json = self.get(f"/v1/runs/{_segment(run)}")
        return answer

    def events(self, run: str, *, most: int = MOST_EVENTS) -> list[Json]:
        """Return the newest events of a run, newest first."""
        return self._events_before(run, None, most)

    def events_since(self, run: str, since: datetime) -> list[Json]:
        """Return the events of a run from `since` on, and perhaps some before, newest first."""
        found: list[Json] = []
        while True:
            before = int(found[-1]["id"]) if found else None
            page = self._events_before(run, before, EVENTS_A_PAGE)
            if before is not None and page and int(page[0]["id"]) >= before:
                return found  # a control plane of an older release, which does not page back
            found += page
            oldest = instant(page[-1].get("at")) if page else None
            if len(page) < EVENTS_A_PAGE or (oldest is not None and oldest < since):
                return found

    def _events_before(self, run: str, before: int | None, most: int) -> list[Json]:
        path = _of_run(run, "events")
        return list(reversed(_items(self.get(path, limit=most, newest=True, before=before))))

    def checkpoints(self, run: str) -> list[Json]:
        """Return the checkpoints of a run, newest first."""
        return list(reversed(_items(self.get(f"/v1/runs/{_segment(run)}/checkpoints"))))

    def alerts(self, run: str | None = None) -> list[Json]:
        """Return alerts of a run, or of all, newest first."""
        return list(reversed(_items(self.get(_of_run(run, "alerts")))))

    def incidents(self, run: str | None = None) -> list[Json]:
        """Return incidents of a run, or of all, newest first."""
        return list(reversed(_items(self.get(_of_run(run, "incidents")))))

    def silences(self) -> list[Json]:
        """Return the silences that are not over, newest first."""
        return list(reversed(_items(self.get("/v1/silences"))))

    def retention(self, run: str) -> list[Json]:
        """Return of each checkpoint that is not retired whether it would go now, and why."""
        return _items(self.get(_of_run(run, "retention")))

    def audit(self) -> list[Json]:
        """Return the newest entries of the audit log, newest first."""
        return list(reversed(_items(self.get("/v1/audit"))))

    def channels(self) -> list[Json]:
        """Return the channels through which people are told."""
        return _items(self.get("/v1/channels"))

    def tokens(self) -> list[Json]:
        """Return all tokens without their secrets, for an admin."""
        return _items(self.get("/v1/tokens"))

    def nodes(self) -> list[Json]:
        """Return all nodes."""
        return _items(self.get("/v1/nodes"))

    def rules(self) -> list[Json]:
        """Return all rules."""
        return _items(self.get("/v1/rules"))

    def several(self, run: str, body: Json) -> list[Json]:
        """Return the series that `body` asks for (`several_body`), in its order. They are not
        remembered.
        """
        answer: Json = self._ask(_of_run(run, "series"), (), json.dumps(body))
        return _items(answer["series"])

    def timelines(self, run: str) -> list[Json]:
        """Return which steps of a run were recorded, oldest first."""
        return _items(self.get(_of_run(run, "timelines")))

    def requests(self, run: str) -> list[Json]:
        """Return what was ever asked of a run and how far it has come, newest first."""
        return list(reversed(_items(self.get(_of_run(run, "requests")))))


def several_body(
    wanted: Sequence[tuple[str, int | None]],
    *,
    generation: int | None = None,
    all_generations: bool = False,
    after_step: int = 0,
    until_step: int | None = None,
    points: int = MOST_POINTS,
    statistics: bool = False,
    tokens: bool = False,
) -> Json:
    """Return the body that asks for a series of each (metric, rank) in one request; rank None is
    the run as a whole.

    Args:
        statistics: exact figures of what is asked for beside the points.
        tokens: what had been taken in beside each point.
    """
    body: Json = {
        "series": [
            {"metric": metric} | ({} if rank is None else {"rank": rank}) for metric, rank in wanted
        ],
        "generation": generation,
        "all_generations": all_generations,
        "after_step": after_step,
        "points": points,
    }
    if until_step is not None:
        body["until_step"] = until_step
    # Only where they are wanted: a control plane of an older release knows neither.
    body |= {"statistics": True} if statistics else {}
    body |= {"tokens": True} if tokens else {}
    return body


def _query(query: Mapping[str, Scalar | None]) -> Query:
    return tuple(sorted((name, value) for name, value in query.items() if value is not None))


def _of_run(run: str | None, what: str) -> str:
    return f"/v1/{what}" if run is None else f"/v1/runs/{_segment(run)}/{what}"


def _path_of(run: str, part: str) -> str:
    """Return the address that tells by itself what a part of a look does."""
    if part in _OF_RUN:
        return _of_run(run, part)
    return f"/v1/{part}" if part != "run" else f"/v1/runs/{_segment(run)}"


def _segment(text: str) -> str:
    return quote(text, safe="")


def _items(answer: Any) -> list[Json]:
    return list(answer)
