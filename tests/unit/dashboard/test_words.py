from dashboard.views.rules import plain, told
from dashboard.views.run_sections import details


def test_an_event_without_a_reason_shows_its_short_values() -> None:
    data = {
        "step": 50,
        "stall_s": 0.15502835,
        "location": "file:///a/b",
        "traceback": "x" * 500,
        "ranks": [1, 2],
    }
    assert details(data) == "step 50 · stall_s 0.155"


def test_a_rules_condition_and_actions_are_told_in_a_line() -> None:
    assert told({"condition": "above", "value": 0.9}, "condition") == "above (value 0.9)"
    assert told({"action": "stop"}, "action") == "stop"
    assert plain({"steps": 3, "within": 20, "seconds": None}) == "steps 3, within 20"
