from dashboard.widgets.table import Click, new_click


def test_a_press_is_heard_once_however_often_it_is_told() -> None:
    heard: dict[str, str] = {}
    first = {"id": "node-a", "verb": "calibrate", "press": "1.1"}
    assert new_click(first, "nodes", heard) == Click("node-a", "calibrate")
    assert new_click(first, "nodes", heard) is None
    assert new_click(None, "nodes", heard) is None
    assert new_click({**first, "press": "2.2"}, "nodes", heard) == Click("node-a", "calibrate")
    assert new_click(first, "others", heard) == Click("node-a", "calibrate")
