from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dashboard.fleet import (
    Order,
    chosen,
    count_told,
    eta_s,
    groups_of,
    ordered,
    read_tags,
    tags_of,
    wrong_since,
)

NOW = datetime(2026, 12, 1, tzinfo=UTC)


def ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).isoformat()


def run(name: str, state: str = "running", **told: Any) -> dict[str, Any]:
    return {"id": name, "name": name, "state": state, **told}


RUNS = [
    run("c", step=90, target_steps=100, loss=2.0, tokens_per_s=5, pace_s=1.0, tags=["big"]),
    run("a", "queued", step=0, target_steps=100, loss=None, tags=["big", "mine"]),
    run("d", "failed", step=50, target_steps=100, loss="NaN", state_since=ago(30)),
    run("b", step=10, target_steps=100, loss=1.0, tokens_per_s=9, pace_s=1.0),
]
ALERTS = {"b": [{"since": ago(10)}, {"since": ago(200)}]}


def test_the_rest_takes_as_long_as_the_newest_pace_says() -> None:
    told = run("x", step=60, target_steps=100, pace_s=2.0, last_point_at=ago(1.5))
    assert eta_s(told, NOW) == pytest.approx(78.5)
    assert eta_s({**told, "last_point_at": ago(500)}, NOW) == pytest.approx(78.0)
    assert eta_s({**told, "state": "paused"}, NOW) is None
    assert eta_s({**told, "pace_s": None}, NOW) is None


def test_trouble_is_as_old_as_its_first_alert_or_its_state() -> None:
    assert wrong_since(RUNS[3], ALERTS["b"]) == NOW - timedelta(seconds=200)
    assert wrong_since(RUNS[2], []) == NOW - timedelta(seconds=30)
    assert wrong_since(RUNS[0], []) is None


@pytest.mark.parametrize(
    ("state", "firing", "groups"),
    [
        ("running", [], {"active"}),
        ("running", [{}], {"active", "attention"}),
        ("recovering", [], {"active", "attention"}),
        ("held", [], {"waiting"}),
        ("succeeded", [], {"ended"}),
        ("failed", [], {"ended", "attention"}),
    ],
)
def test_a_run_belongs_to_groups(state: str, firing: list[Any], groups: set[str]) -> None:
    assert groups_of(run("x", state), firing) == groups


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ("newest", "cadb"),
        ("name", "abcd"),
        ("progress", "cdba"),
        ("loss", "bcad"),
        ("speed", "bcad"),
        ("eta", "cbad"),
        ("attention", "bdca"),
    ],
)
def test_what_an_order_says_nothing_of_comes_last(order: Order, names: str) -> None:
    assert "".join(each["id"] for each in ordered(RUNS, ALERTS, order, NOW)) == names


def test_runs_are_found_by_group_tags_and_words() -> None:
    def found(**asked: Any) -> str:
        told = {"group": None, "tags": (), "sought": "", **asked}
        return "".join(
            each["id"] for each in chosen(RUNS, ALERTS, text=lambda each: each["name"], **told)
        )

    assert found() == "cadb"
    assert found(group="attention") == "db"
    assert found(tags=("big",)) == "ca"
    assert found(tags=("big", "mine")) == "a"
    assert found(sought="B") == "b"


def test_tags_are_written_with_commas_between_them() -> None:
    assert read_tags(" one, two words,,one ") == ["one", "two words"]
    assert tags_of(RUNS) == ["big", "mine"]


@pytest.mark.parametrize(
    ("counts", "told"),
    [((1, 1, 1), "one"), ((4, 4, 4), "all"), ((1, 1, 4), "found"), ((300, 900, 1000), "first")],
)
def test_how_many_runs_there_are_is_told_in_as_few_words_as_that_takes(
    counts: tuple[int, int, int], told: str
) -> None:
    assert count_told(*counts) == told
