from dashboard.charts.panels import overlay_panel
from dashboard.charts.series import Series
from dashboard.comparison import differences, lowest
from dashboard.sought import holds


def series(*values: object) -> Series:
    steps = list(range(1, len(values) + 1))
    return Series.read(
        {"columns": {"generation": [1] * len(values), "step": steps, "value": values}}
    )


def test_only_what_differs_is_told_by_its_path() -> None:
    one = {"train": {"lr": 0.1, "steps": 5}, "name": "a"}
    other = {"train": {"lr": 0.2, "steps": 5}, "name": "a", "params": {}}
    assert differences([one, other]) == [("params", ["", "{}"]), ("train.lr", ["0.1", "0.2"])]
    assert differences([one, one]) == []
    assert differences([]) == []


def test_the_lowest_value_is_a_finite_one() -> None:
    assert lowest(series(3.0, "NaN", "-Infinity", 1.5, 2.0)) == (1.5, 4)
    assert lowest(series(None, "NaN")) is None


def test_lines_of_runs_are_told_apart_and_their_names_escaped() -> None:
    words = {"step": "step", "empty": "-"}
    lines = [("<i>a", series(1.0, 2.0)), ("b", series(None)), ("c", series(3.0))]
    panel = overlay_panel("loss", "Loss", "nats", lines, words=words)
    assert [trace["name"] for trace in panel["traces"]] == ["&lt;i&gt;a", "c"]
    assert panel["traces"][0]["line"] != panel["traces"][1]["line"]
    assert overlay_panel("loss", "Loss", "nats", [], words=words)["note"] == "-"


def test_an_entry_is_found_by_words_anywhere_in_it() -> None:
    entry = "3 token:Admin pause_requested r1"
    assert holds(entry, "admin r1")
    assert holds(entry, "")
    assert not holds(entry, "admin r2")
