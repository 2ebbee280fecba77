from typing import Any

import pytest

from dashboard.steering import (
    VERBS,
    Desk,
    applied_step,
    attempt_of_restore,
    first_new_step,
    is_final,
    progress,
    ranks_past,
    ranks_told,
    request_body,
    shown_as,
    verb,
)
from trainmaster.errors import ConflictError

SEEN = {"id": "r1", "state": "running", "generation": 2, "version": 7}


class FakeApi:
    """Takes requests at `version`, as the control plane does."""

    def __init__(self, version: int = 7, **run: Any) -> None:
        self.run = {**SEEN, "version": version, **run}
        self.taken: dict[str, dict[str, Any]] = {}

    def get(self, path: str, **query: Any) -> Any:
        return self.run

    def put(self, path: str, body: Any, *, headers: Any = None) -> Any:
        raise AssertionError("nothing is put")

    def post(self, path: str, body: Any = None, *, headers: Any = None) -> Any:
        key = body["idempotency_key"]
        if key not in self.taken:
            if body["expected_version"] != self.run["version"]:
                raise ConflictError("the run has changed", code="stale_version")
            self.taken[key] = {**body, "id": len(self.taken) + 1, "state": "pending"}
        return self.taken[key]


def test_a_double_click_is_one_request() -> None:
    api, memory = FakeApi(), {}
    first = Desk(api, "r1", memory).ask("pause", {}, seen=SEEN)
    second = Desk(api, "r1", memory).ask("pause", {}, seen=SEEN)
    assert first["id"] == second["id"]
    assert len(api.taken) == 1


def test_a_press_that_comes_twice_is_one_request_though_the_first_moved_the_version() -> None:
    api, memory = FakeApi(), {}
    first = Desk(api, "r1", memory).ask("checkpoint", {}, seen=SEEN)
    api.run["version"] = 8
    second = Desk(api, "r1", memory).ask("checkpoint", {}, seen={**SEEN, "version": 8})
    assert first["id"] == second["id"]
    assert len(api.taken) == 1


def test_a_request_whose_answer_was_lost_and_that_is_over_is_not_taken_for_a_new_one() -> None:
    api, memory = FakeApi(), {}
    first = Desk(api, "r1", memory).ask("checkpoint", {}, seen=SEEN)
    memory["asked:r1"].clear()
    next(iter(api.taken.values()))["state"] = "applied"
    assert Desk(api, "r1", memory).ask("checkpoint", {}, seen=SEEN)["id"] != first["id"]


def test_the_same_button_asks_anew_once_its_request_is_done_with() -> None:
    api, memory = FakeApi(), {}
    desk = Desk(api, "r1", memory)
    first = desk.ask("checkpoint", {}, seen=SEEN)
    assert desk.waits
    desk.learn([{**first, "state": "applied"}])
    assert not desk.waits
    assert desk.ask("checkpoint", {}, seen=SEEN)["id"] != first["id"]


def test_a_request_carries_the_version_that_was_seen() -> None:
    api = FakeApi()
    Desk(api, "r1", {}).ask("stop", {"checkpoint": False}, seen=SEEN, why="enough")
    (body,) = api.taken.values()
    assert (body["expected_version"], body["why"]) == (7, "enough")
    assert (body["kind"], body["args"]) == ("stop", {"checkpoint": False})


def test_a_version_that_moved_with_the_run_unchanged_is_asked_again() -> None:
    api = FakeApi(version=9)
    assert Desk(api, "r1", {}).ask("pause", {}, seen=SEEN)["expected_version"] == 9


@pytest.mark.parametrize("change", [{"state": "paused"}, {"generation": 3}])
def test_a_run_that_really_changed_is_not_asked_on_an_old_view(change: dict[str, Any]) -> None:
    api = FakeApi(version=9, **change)
    with pytest.raises(ConflictError):
        Desk(api, "r1", {}).ask("pause", {}, seen=SEEN)
    assert api.taken == {}


def test_to_hold_is_a_way_to_pause() -> None:
    assert request_body("hold", {}) == ("pause", {"hold": True})
    assert shown_as({"kind": "pause", "args": {"hold": True}}) == "hold"
    assert shown_as({"kind": "pause", "args": {}}) == "pause"


@pytest.mark.parametrize(
    ("state", "enabled"),
    [
        ("queued", {"pause", "stop"}),
        ("running", {"pause", "hold", "checkpoint", "stop"}),
        ("paused", {"resume", "stop"}),
        ("held", {"pause", "resume", "checkpoint", "stop"}),
        ("succeeded", set()),
        ("failed", {"resume"}),
        ("stopped", {"resume"}),
        ("a_state_of_a_newer_version", set()),
    ],
)
def test_the_state_decides_which_buttons_can_be_pressed(state: str, enabled: set[str]) -> None:
    verbs = [verb(kind, state, "operator") for kind in VERBS]
    assert {each.kind for each in verbs if each.enabled} == enabled
    assert all(each.reason for each in verbs if not each.enabled)


def test_a_viewer_can_press_nothing_and_is_told_why() -> None:
    assert {verb(kind, "running", "viewer").reason for kind in VERBS} == {"steer.why.viewer"}


@pytest.mark.parametrize(
    ("request_", "reached"),
    [
        ({"state": "pending"}, ("sent",)),
        ({"state": "accepted", "order": {"state": "sent"}}, ("sent",)),
        ({"state": "accepted", "order": {"state": "received"}}, ("sent", "received")),
        ({"state": "accepted", "order": None}, ("sent", "received")),
        ({"state": "applied", "order": {"state": "applied"}}, ("sent", "received", "applied")),
        ({"state": "refused", "order": None}, ("sent", "refused")),
        ({"state": "accepted", "order": {"state": "refused"}}, ("sent", "refused")),
    ],
)
def test_a_request_is_shown_as_far_as_it_has_come(
    request_: dict[str, Any], reached: tuple[str, ...]
) -> None:
    assert progress(request_) == reached
    assert is_final(request_) == (request_["state"] in {"applied", "refused"})


def test_the_step_is_the_requests_own_or_else_its_orders() -> None:
    assert applied_step({"step": 5, "order": {"step": 4}}) == 5
    assert applied_step({"step": None, "order": {"step": 4}}) == 4
    assert applied_step({"step": None, "order": None}) is None


def test_what_can_be_pressed_is_what_the_control_plane_allows() -> None:
    from control.lifecycle import ALLOWED_FROM, State

    for kind in ("pause", "resume", "stop", "checkpoint", "restore"):
        allowed = {state.value for state in ALLOWED_FROM[kind]}
        pressable = {state.value for state in State if verb(kind, state.value, None).enabled}  # type: ignore[arg-type]
        assert pressable == allowed, kind


def test_what_others_asked_is_told_until_it_is_done_with() -> None:
    desk = Desk(FakeApi(), "r1", {})
    mine = desk.ask("pause", {}, seen=SEEN)
    theirs = {"id": 7, "kind": "stop", "state": "accepted"}
    done, looking = {**theirs, "id": 8, "state": "applied"}, {**theirs, "id": 9, "kind": "stacks"}
    assert desk.others([mine, theirs, done, looking]) == [theirs]


def test_the_ranks_of_an_order_are_those_of_its_generation() -> None:
    run = {"generation": 2, "ranks": [{"last_step": 195}, {"last_step": 194}, {"last_step": None}]}
    request = {"state": "applied", "step": 195, "order": {"generation": 2}}
    assert (ranks_told(request, run), ranks_past(request, run)) == (3, 1)
    assert ranks_told({"order": {"generation": 1}}, run) is None
    assert ranks_told({"order": None}, run) is None


def test_a_restore_is_over_with_its_first_new_step() -> None:
    asked = {"args": {"checkpoint": "c100"}, "created_at": "2026-01-01T00:00:10Z"}
    attempt = {
        "generation": 3,
        "cause_kind": "restore",
        "resumed_from_checkpoint": "c100",
        "resumed_from_step": 100,
        "last_step": None,
        "started_at": "2026-01-01T00:00:11Z",
    }
    earlier = {**attempt, "generation": 2, "started_at": "2026-01-01T00:00:01Z"}
    assert attempt_of_restore(asked, {"attempts": [earlier]}) is None
    assert attempt_of_restore(asked, {"attempts": [attempt, earlier]}) == attempt
    assert first_new_step(attempt) is None
    assert first_new_step({**attempt, "last_step": 103}) == 101
