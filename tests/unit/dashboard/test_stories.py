from typing import Any

from dashboard.stories import Term, details, story, terms


def incident(**more: Any) -> dict[str, Any]:
    told = {
        "id": "i1",
        "rule": "loss_spike",
        "opened_at": "2026-01-01T00:00:10Z",
        "closed_at": None,
        "state": "verifying",
        "first_bad_step": 150,
        "actions": [],
        "verification": {"needed": 20},
        "because": "now",
    }
    return {**told, **more}


def event(number: int, kind: str, second: int, about: str = "i1") -> dict[str, Any]:
    at = f"2026-01-01T00:00:{second}Z"
    return {"id": number, "kind": kind, "at": at, "because": kind, "data": {"incident": about}}


def test_a_story_begins_with_its_first_sign_and_tells_in_the_order_of_time() -> None:
    acted = {"action": "rollback", "at": "2026-01-01T00:00:12+00:00", "to_step": 100}
    events = [event(3, "rule_acted", 12), event(2, "incident_opened", 11), event(4, "other", 13)]
    told = story(incident(actions=[acted]), events)
    assert [(each.part, each.kind) for each in told] == [
        ("sign", "loss_spike"),
        ("event", "incident_opened"),
        ("event", "rule_acted"),
        ("tried", "rollback"),
        ("event", "other"),
        ("probation", ""),
    ]
    assert told[0].step == 150
    assert terms({"needed": 20}) == [Term("steps", {"needed": "20", "healthy": "0"})]


def test_alerts_beside_the_first_stand_after_it() -> None:
    alerts = [
        {"rule": "loss_spike", "scope": "run", "first_bad_step": 150},
        {"rule": "slow rank", "scope": "rank 3", "first_bad_step": 151},
        {"rule": "lower throughput", "scope": "run", "first_bad_step": 152},
    ]
    told = story(incident(alerts=alerts), [event(1, "incident_opened", 11)])
    assert [(each.part, each.kind, each.step) for each in told[:3]] == [
        ("sign", "loss_spike", 150),
        ("beside", "slow rank (rank 3)", 151),
        ("beside", "lower throughput", 152),
    ]


def test_events_of_other_incidents_are_passed_over() -> None:
    told = story(incident(), [event(1, "rule_acted", 12, about="i2")])
    assert [each.part for each in told] == ["sign", "event", "probation"]
    assert told[1].because == "now"


def test_what_was_tried_says_whether_it_helped_and_why() -> None:
    tried = {"action": "skip", "at": None, "helped": False, "outcome": "the loss stayed NaN"}
    told = [each for each in story(incident(actions=[tried]), []) if each.part == "tried"]
    assert [(each.helped, each.because) for each in told] == [(False, "the loss stayed NaN")]


def test_a_proposal_is_asked_instead_of_a_probation() -> None:
    proposed = {"action": {"action": "cordon"}, "because": "rank 3 is slow"}
    told = story(incident(state="waiting", proposed=proposed), [])
    assert (told[-1].part, told[-1].kind, told[-1].because) == ("asked", "cordon", "rank 3 is slow")


def test_the_end_says_how_and_is_told_once() -> None:
    closed = incident(
        state="closed", closed_as="resolved", closed_at="2026-01-01T00:01:00Z", because="healthy"
    )
    told = story(closed, [event(9, "incident_closed", 59)])
    assert [(each.part, each.kind, each.because) for each in told[1:]] == [
        ("end", "resolved", "healthy")
    ]


def test_details_leave_out_what_is_told_elsewhere() -> None:
    assert details({"action": "rollback", "at": "x", "to_step": 3, "skip": []}) == "to_step 3"


def test_what_was_rejected_and_when_the_ranks_took_it_up_belong_to_the_story() -> None:
    acted = {
        "action": "rollback",
        "at": "2026-01-01T00:00:12+00:00",
        "generation": 1,
        "rejected": [{"checkpoint": "r1-g1-s150", "step": 150, "why": "is quarantined"}],
    }
    restored = {**event(5, "checkpoint_restored", 14, about=""), "generation": 2}
    later = {**event(6, "run_running", 15, about=""), "generation": 2}
    told = story(incident(actions=[acted]), [restored, later])
    tried = next(each for each in told if each.part == "tried")
    assert tried.rejected == ("r1-g1-s150 is quarantined",)
    assert [each.kind for each in told if each.part == "answered"] == ["checkpoint_restored"]


def test_a_probation_says_what_it_measures_against() -> None:
    found = terms({"needed": 20, "healthy_steps": 7, "loss_band": [2.0, 2.5], "grad_norm_below": 3})
    assert [each.name for each in found] == ["steps", "loss", "grad_norm_below"]
    assert found[0].values == {"needed": "20", "healthy": "7"}
