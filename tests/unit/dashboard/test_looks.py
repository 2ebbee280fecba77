"""Looks: what a page reads in one request, what is kept of it, and what is asked for next."""

import json
from typing import Any

import pytest

from dashboard.data import LOOK_HOLDS_S, Query, Reader
from dashboard.live import read_asked
from dashboard.places import MOST_PLACES, Places
from dashboard.shared import Shared
from dashboard.tails import Tails, Wanted, ahead, read_all
from dashboard.views.run_drawn import SMOOTHING
from trainmaster.errors import NotFoundError, UnavailableError


class Control:
    """Answers looks at one run, whose step is its version, and counts what it is asked."""

    def __init__(self) -> None:
        self.step = 10
        self.fails: Exception | None = None
        self.asked: list[tuple[str, Any]] = []

    def __call__(self, path: str, query: Query, body: str) -> Any:
        asked = json.loads(body) if body else dict(query)
        self.asked.append((path, asked))
        if self.fails is not None:
            raise self.fails
        if path.endswith("/series"):
            return self.series(asked)
        if not path.endswith("/look"):
            return {"id": "r1", "alone": True}
        parts = {}
        for name, version in (("run", str(self.step)), ("alerts", "same"), ("newest_event", "7")):
            answer = {"run": {"id": "r1", "generation": 1, "step": self.step}, "newest_event": 7}
            known = asked["known"].get(name) == version
            parts[name] = {"version": version}
            parts[name] |= {} if known else {"answer": answer.get(name, [])}
        return {"parts": parts, "series": [self.series(each) for each in asked["series"]]}

    def series(self, asked: dict[str, Any]) -> dict[str, Any]:
        steps = list(range(asked["after_step"] + 1, self.step + 1))
        columns = {"generation": [1] * len(steps), "step": steps, "value": [0.5] * len(steps)}
        return {"series": [{"columns": columns} for _ in asked["series"]]}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_look_answers_what_is_read_within_the_next_second() -> None:
    control, clock = Control(), Clock()
    reader = Reader(control, {}, monotonic=clock)
    reader.look("r1")
    reader.look("r1")
    assert (reader.run("r1")["step"], reader.alerts("r1"), reader.newest_event("r1")) == (10, [], 7)
    assert len(control.asked) == 1
    clock.now += LOOK_HOLDS_S
    assert reader.run("r1") == {"id": "r1", "alone": True}


def test_what_a_look_has_told_before_is_not_told_again() -> None:
    control, clock = Control(), Clock()
    reader = Reader(control, {}, monotonic=clock)
    reader.look("r1")
    clock.now, control.step = 5.0, 11
    reader.look("r1")
    assert control.asked[-1][1]["known"] == {"run": "10", "alerts": "same", "newest_event": "7"}
    assert (reader.run("r1")["step"], reader.alerts("r1")) == (11, [])
    assert reader.versions("r1")["run"] == "11"


def test_while_the_control_plane_is_away_the_last_look_stands_and_nobody_waits_twice() -> None:
    control, clock = Control(), Clock()
    reader = Reader(control, {}, monotonic=clock)
    with pytest.raises(UnavailableError):
        control.fails = UnavailableError("away")
        reader.look("r1")
    control.fails = None
    reader.look("r1")
    clock.now, control.fails = 5.0, UnavailableError("away")
    asked = len(control.asked)
    reader.look("r1")
    assert (reader.run("r1")["step"], reader.outage) == (10, control.fails)
    with pytest.raises(UnavailableError):
        reader.nodes()
    assert len(control.asked) == asked + 1


def test_without_looks_each_part_is_read_by_itself() -> None:
    control = Control()
    control.fails = NotFoundError("no such address")
    reader = Reader(control, {})
    reader.look("r1")
    control.fails = None
    assert reader.run("r1") == {"id": "r1", "alone": True}


def test_a_look_brings_the_points_that_have_come_since() -> None:
    control, wanted = Control(), [Wanted("loss"), Wanted("lr")]
    tails: Tails = {}
    run = {"id": "r1", "generation": 1}
    read_all(Reader(control, {}), tails, run, wanted[:1])
    control.step = 12
    reader = Reader(control, {})
    reader.look("r1", ahead(tails, "r1", wanted))
    asked = len(control.asked)
    grown, whole = read_all(reader, tails, run, wanted)
    assert grown.steps.tolist() == whole.steps.tolist() == list(range(1, 13))
    assert len(control.asked) == asked


def test_shared_answers_are_found_once_and_grow_old() -> None:
    clock, found = Clock(), iter(range(10))
    shared = Shared[int](holds_s=1.0, most=2, monotonic=clock)
    assert [shared.get("a", lambda: next(found)) for _ in range(3)] == [0, 0, 0]
    clock.now = 1.0
    assert [shared.get(key, lambda: next(found)) for key in ("a", "b", "a")] == [1, 2, 1]
    shared.get("c", lambda: next(found))
    assert shared.get("b", lambda: next(found)) == 4
    shared.clear()
    assert shared.get("b", lambda: next(found)) == 5


def test_what_could_not_be_found_is_looked_for_again() -> None:
    shared = Shared[int](holds_s=1.0, most=2)

    def fail() -> int:
        raise UnavailableError("away")

    with pytest.raises(UnavailableError):
        shared.get("a", fail)
    assert shared.get("a", lambda: 3) == 3


def test_places_are_of_one_person_and_the_oldest_go() -> None:
    places = Places()
    mine, theirs = places.of("me", "r1"), places.of("them", "r1")
    assert places.of("me", "r1") is mine is not theirs
    mine.answers["x"], theirs.answers["x"] = 1, 2
    places.forget("me")
    assert (mine.answers, theirs.answers) == ({}, {"x": 2})
    for number in range(MOST_PLACES):
        places.of("me", f"other-{number}")
    assert places.of("me", "r1") is not mine


def test_what_an_address_asks_for_is_read_and_nonsense_is_ignored() -> None:
    asked = read_asked(
        {"axis": "time", "smoothing": "some", "log": "1", "steps": "4-9", "reach": '["a", "b"]'}
    )
    assert (asked.kind, asked.keep, asked.log) == ("time", SMOOTHING["some"], True)
    assert (asked.steps, asked.reach, asked.first) == ((4, 9), ("a", "b"), False)
    nonsense = {"axis": "colour", "smoothing": "x", "log": "maybe", "steps": "9-4"}
    for reach in ("", "{", "3", "[1]", "null", "[1, 2, 3]"):
        assert read_asked({**nonsense, "reach": reach}) == read_asked({})
