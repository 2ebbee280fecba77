from dashboard.views.rules import plain, told
from dashboard.views.run_dialogs import commands
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


def test_the_commands_that_export_can_be_pasted_whatever_the_names_hold() -> None:
    checkpoint = {"id": "r1-g1-s5", "location": "file:///a b/$(reboot)/c"}
    by_id, by_place = commands("http://127.0.0.1:8700", checkpoint)
    assert by_id == (
        "TRAINMASTER_URL=http://127.0.0.1:8700 trainmaster export-weights r1-g1-s5 "
        "--out r1-g1-s5-weights"
    )
    assert "'file:///a b/$(reboot)/c' --out" in by_place
