from dashboard.charts.coordinates import Axis, coordinates_panel
from dashboard.charts.panels import overlay_panel
from dashboard.charts.series import Series
from dashboard.comparison import differences, lowest, numbers_that_differ
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


def test_numbers_in_which_specs_differ_become_axes() -> None:
    specs = [{"lr": 0.1, "name": "a", "on": True}, {"lr": 0.2, "name": "b", "on": False}, {}]
    assert numbers_that_differ(specs) == [("lr", (0.1, 0.2, None))]


def test_each_axis_has_its_own_scale_and_tells_its_ends() -> None:
    axes = [Axis("lr", (0.1, 0.3)), Axis("same", (1.0, 1.0)), Axis("loss", (2.0, None))]
    assert coordinates_panel("c", "title", ["a", "b"], axes) is None
    axes[2] = Axis("loss", (2.0, 1.0))
    panel = coordinates_panel("c", "title", ["<b>", "b"], axes)
    assert panel is not None
    assert [trace["y"] for trace in panel["traces"]] == [[0.0, 1.0], [1.0, 0.0]]
    assert panel["traces"][0]["name"] == "&lt;b&gt;"
    assert panel["layout"]["xaxis"]["ticktext"] == ["lr", "loss"]
    assert [each["text"] for each in panel["layout"]["annotations"]] == ["0.1", "0.3", "1", "2"]
