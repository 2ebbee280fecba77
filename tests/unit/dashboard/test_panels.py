import json
import math
from base64 import b64decode
from typing import Any

import numpy as np
import pytest

from dashboard.charts.arrays import packed_steps, packed_values
from dashboard.charts.marks import MOST_MARKS, Mark, alert_marks, generation_marks
from dashboard.charts.palette import ABANDONED, SURVIVING, rank_line
from dashboard.charts.panels import MOST_LINES, rank_panel, run_panel
from dashboard.charts.series import OPEN_END, Series

WORDS = {
    "surviving": "this run",
    "abandoned": "abandoned",
    "non_finite": "not finite",
    "step": "step",
    "generation": "generation",
    "rank": "rank",
    "empty": "no samples yet",
    "median": "median",
    "smoothed": "smoothed",
}
TYPES = {"i4": "<i4", "f4": "<f4", "f8": "<f8"}


def unpacked(packed: dict[str, str]) -> list[float]:
    return np.frombuffer(b64decode(packed["bdata"]), TYPES[packed["dtype"]]).tolist()


def series(*points: tuple[int, int, object]) -> Series:
    generations, steps, values = zip(*points, strict=True) if points else ((), (), ())
    return Series.read({"columns": {"generation": generations, "step": steps, "value": values}})


def forked() -> Series:
    return series((1, 1, 3.0), (1, 2, 2.0), (1, 3, 9.0), (2, 3, 1.0), (2, 4, "NaN"), (2, 5, None))


def panel(points: Series, **more: Any) -> dict[str, Any]:
    return run_panel("loss", "Loss", "nats", points, {2: OPEN_END, 1: 2}, words=WORDS, **more)


def test_the_surviving_lineage_is_coloured_and_the_abandoned_branch_grey_and_dashed() -> None:
    alive, abandoned, _ = panel(forked())["traces"]
    assert (unpacked(abandoned["x"]), abandoned["line"]["color"]) == ([3], ABANDONED)
    assert unpacked(alive["x"]) == [1, 2, 3, 4, 5]
    assert alive["line"]["color"] == SURVIVING
    assert abandoned["line"]["dash"] != alive["line"]["dash"]


def test_nan_is_a_gap_in_the_line_and_a_mark_below_it() -> None:
    alive, _, bad = panel(forked())["traces"]
    assert math.isnan(unpacked(alive["y"])[3])
    assert alive["connectgaps"] is False
    assert unpacked(bad["x"]) == [4]
    assert bad["text"] == ["NaN · generation 2"]


@pytest.mark.parametrize(("value", "said"), [("Infinity", "+INF"), ("-Infinity", "-INF")])
def test_infinities_are_marked_with_their_sign(value: str, said: str) -> None:
    *_, bad = panel(series((2, 3, value), (2, 4, 1.0)))["traces"]
    assert bad["text"] == [f"{said} · generation 2"]


def test_a_panel_is_json_whatever_was_measured() -> None:
    json.dumps(panel(forked(), marks=[Mark(3, "generation", "g2", line=True)]), allow_nan=False)


def test_a_panel_without_samples_says_so() -> None:
    shown = panel(series())
    assert (shown["note"], shown["traces"]) == ("no samples yet", [])


def test_a_series_of_nothing_measured_counts_as_without_samples() -> None:
    assert panel(series((2, 1, None)))["note"] == "no samples yet"


def test_generations_stand_as_vertical_lines_where_they_took_over() -> None:
    attempts = [
        {"generation": 1, "resumed_from_step": 0, "cause": "submitted"},
        {"generation": 2, "resumed_from_step": 100, "cause": "rollback"},
    ]
    marks = generation_marks(attempts, "Generation {generation}: {cause}")
    assert marks == [Mark(101, "generation", "Generation 2: rollback", line=True, generation=2)]
    (shape,) = panel(forked(), marks=marks)["layout"]["shapes"]
    assert (shape["x0"], shape["x1"], shape["yref"]) == (101, 101, "paper")


def test_text_from_outside_is_escaped_for_plotly() -> None:
    marks = [Mark(3, "alert", "<b>bold</b> & <script>")]
    *_, drawn = panel(forked(), marks=marks)["traces"]
    assert drawn["text"] == ["&lt;b&gt;bold&lt;/b&gt; &amp; &lt;script&gt;"]


def test_only_the_newest_marks_are_drawn() -> None:
    alerts = [{"first_bad_step": step, "rule": "r", "state": "firing"} for step in range(1, 200)]
    marks = alert_marks(alerts)
    assert (len(marks), marks[-1].step) == (MOST_MARKS, 199)


def test_an_alert_without_a_bad_step_has_no_mark() -> None:
    assert alert_marks([{"rule": "silent", "first_bad_step": None, "state": "firing"}]) == []


def test_an_alert_that_has_not_fired_yet_is_not_marked() -> None:
    assert alert_marks([{"rule": "r", "first_bad_step": 3, "state": "pending"}]) == []


def test_each_rank_has_its_line_and_no_two_look_alike() -> None:
    by_rank = {rank: series((1, 1, 0.5), (1, 2, 0.6)) for rank in range(MOST_LINES)}
    shown = rank_panel("u", "Utilisation", "%", by_rank, words=WORDS, ratio=True)
    assert [trace["name"] for trace in shown["traces"]][:2] == ["rank 0", "rank 1"]
    looks = {(trace["line"]["color"], trace["line"]["dash"]) for trace in shown["traces"]}
    assert len(looks) == MOST_LINES
    assert shown["layout"]["yaxis"]["range"] == [0, 1.02]


def test_many_ranks_are_shown_by_their_extremes_and_median() -> None:
    by_rank = {rank: series((1, 1, float(rank)), (1, 2, "NaN")) for rank in range(33)}
    shown = rank_panel("u", "Utilisation", "%", by_rank, words=WORDS)
    highest, median, lowest = shown["traces"]
    assert [unpacked(trace["y"]) for trace in (highest, median, lowest)] == [[32.0], [16.0], [0.0]]


def test_the_alternative_text_tells_the_newest_values() -> None:
    by_rank = {0: series((1, 1, 0.25)), 1: series((1, 1, 0.5), (1, 2, "NaN"))}
    assert rank_panel("u", "Use", "%", by_rank, words=WORDS)["alt"] == (
        "Use (%). rank 0: 0.25, rank 1: 0.5"
    )
    assert panel(forked())["alt"] == "Loss (nats): 3 @ 1 → 1 @ 3"


def test_two_thousand_points_take_at_most_40_kilobytes() -> None:
    points = series(*((1, step, step / 7) for step in range(2000)))
    shown = run_panel("loss", "Loss", "nats", points, {}, words=WORDS)
    assert len(json.dumps(shown)) < 40_000


def test_steps_beyond_32_bits_are_packed_as_doubles() -> None:
    assert packed_steps(np.asarray([2**40]))["dtype"] == "f8"
    assert unpacked(packed_steps(np.asarray([2**40]))) == [2**40]


def test_a_value_too_large_for_float32_is_a_gap_not_a_warning() -> None:
    assert math.isnan(unpacked(packed_values(np.asarray([1e300])))[0])


def test_rank_lines_repeat_only_after_32() -> None:
    looks = [json.dumps(rank_line(rank)) for rank in range(33)]
    assert len(set(looks)) == 32


def test_panels_of_a_run_show_the_same_steps() -> None:
    axis = panel(forked(), extent=(1, 9))["layout"]["xaxis"]
    assert axis["autorangeoptions"] == {"include": [1, 9], "clipmin": 1, "clipmax": 9}


def test_a_smoothed_line_has_what_was_measured_faintly_behind_it() -> None:
    raw, smooth, *_ = panel(series((2, 1, 4.0), (2, 2, 0.0), (2, 3, 0.0)), keep=0.5)["traces"]
    assert raw["opacity"] < 1
    assert unpacked(raw["y"]) == [4.0, 0.0, 0.0]
    assert unpacked(smooth["y"]) == pytest.approx([4.0, 4 / 3, 4 / 7])
    assert smooth["name"] == "smoothed"
