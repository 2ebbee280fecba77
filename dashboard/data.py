"""What pages read: the API's answers, and the last good ones while it is away."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from datetime import datetime
from typing import Any, Protocol
from urllib.parse import quote

from dashboard.formats import instant
from trainmaster.errors import UnavailableError

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
_MOST_REMEMBERED = 200


class Api(Protocol):
    """What the dashboard needs of `trainmaster.client.Client`."""

    def get(self, path: str, **query: Scalar | None) -> Any: ...

    def put(self, path: str, body: Any, *, headers: dict[str, str] | None = None) -> Any: ...

    def post(
        self, path: str, body: Any = None, *, headers: dict[str, str] | None = None
    ) -> Any: ...

    def delete(self, path: str) -> Any: ...


class Reader:
    """Reads for one page view.

    While the control plane is away, what was last read is read again, and `outage` says why.
    """

    def __init__(self, fetch: Fetch, memory: Memory) -> None:
        """Read through `fetch`, which may share answers; `memory` outlives this page view."""
        self._fetch = fetch
        self._memory = memory
        self.outage: UnavailableError | None = None

    def get(self, path: str, **query: Scalar | None) -> Any:
        """Return the answer at `path`.

        Raises:
            UnavailableError: the control plane is away, and this has not been read before.
            TrainmasterError: it refuses.
        """
        key = (path, _query(query))
        try:
            answer = self._read(path, **query)
        except UnavailableError:
            if key in self._memory:
                return self._memory[key]
            raise
        self._memory.pop(key, None)
        self._memory[key] = answer
        while len(self._memory) > _MOST_REMEMBERED:
            del self._memory[next(iter(self._memory))]
        return answer

    def _read(self, path: str, **query: Scalar | None) -> Any:
        return self._ask(path, _query(query), "")

    def _ask(self, path: str, query: Query, body: str) -> Any:
        try:
            return self._fetch(path, query, body)
        except UnavailableError as error:
            self.outage = error
            raise

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

    def several(
        self,
        run: str,
        wanted: Sequence[tuple[str, int | None]],
        *,
        generation: int | None = None,
        all_generations: bool = False,
        after_step: int = 0,
        until_step: int | None = None,
        points: int = MOST_POINTS,
        statistics: bool = False,
        tokens: bool = False,
    ) -> list[Json]:
        """Return a series for each (metric, rank) that is wanted, in one request; rank None is the
        run as a whole. They are not remembered.

        Args:
            statistics: exact figures of what is asked for beside the points.
            tokens: what had been taken in beside each point.
        """
        body: Json = {
            "series": [
                {"metric": metric} | ({} if rank is None else {"rank": rank})
                for metric, rank in wanted
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
        answer: Json = self._ask(_of_run(run, "series"), (), json.dumps(body))
        return _items(answer["series"])

    def timelines(self, run: str) -> list[Json]:
        """Return which steps of a run were recorded, oldest first."""
        return _items(self.get(_of_run(run, "timelines")))

    def requests(self, run: str) -> list[Json]:
        """Return what was ever asked of a run and how far it has come, newest first."""
        return list(reversed(_items(self.get(_of_run(run, "requests")))))


def _query(query: Mapping[str, Scalar | None]) -> Query:
    return tuple(sorted((name, value) for name, value in query.items() if value is not None))


def _of_run(run: str | None, what: str) -> str:
    return f"/v1/{what}" if run is None else f"/v1/runs/{_segment(run)}/{what}"


def _segment(text: str) -> str:
    return quote(text, safe="")


def _items(answer: Any) -> list[Json]:
    return list(answer)
