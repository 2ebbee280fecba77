"""`top`: runs that move first, what is wrong with each, and who waits for an answer."""

from datetime import UTC, datetime
from typing import Any

from tests.unit.trainmaster.cli.command import command
from trainmaster.cli.top import MOST_ENDED, node_rows, run_rows

NOW = datetime(2026, 3, 1, 0, 1, tzinfo=UTC)


def run(name: str, state: str = "running", **more: Any) -> dict[str, Any]:
    return {"id": name, "name": name, "state": state, "step": 3, "target_steps": 10, **more}


def test_what_moves_comes_first_and_of_what_is_over_only_the_newest() -> None:
    ended = [run(f"old{number}", "succeeded") for number in range(9)]
    rows = run_rows([run("a"), *ended, run("b", "queued", because="waits for slots")], [], NOW)
    assert [row[0] for row in rows[:3]] == ["b", "a", "old8"]
    assert len(rows) == 2 + MOST_ENDED
    assert rows[0][-1] == "waits for slots"


def test_firing_rules_are_named_and_points_have_an_age() -> None:
    alerts = [{"run": "a", "rule": "spike"}, {"run": "b", "rule": "other"}]
    [row] = run_rows([run("a", last_point_at="2026-03-01T00:00:48Z")], alerts, NOW)
    assert [row[3], *row[6:]] == ["3/10", "12 s", "firing: spike"]


def test_nodes_say_what_is_taken_and_by_whom() -> None:
    node = {"id": "oak", "state": "present", "slots": 4, "cordoned": True}
    taken = [{"run": "r2"}, {"run": "r1"}, {"run": "r1"}]
    [row] = node_rows([{**node, "taken": taken, "last_seen_at": None}], NOW)
    assert row == ["oak", "present, cordoned", "4", "3", "-", "r1, r2"]


def test_one_look_where_there_is_no_terminal() -> None:
    answers: dict[str, list[Any]] = {
        "GET /v1/runs": [[run("a\x1b[31m")]],
        "GET /v1/nodes": [[]],
        "GET /v1/alerts": [[]],
        "GET /v1/incidents": [[{"id": "i7", "run": "a", "because": "It asks."}]],
    }
    told = command("top", answers=answers)
    assert told.status == 0
    assert "trainmaster approve i7" in told.stdout
    assert "\x1b" not in told.stdout
