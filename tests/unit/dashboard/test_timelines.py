import numpy as np

from dashboard.charts.gantt import MOST_BARS, gantt_panel, span
from dashboard.charts.heat import deviation, heat_panel, told_extremes
from dashboard.links import links_of
from dashboard.views.run_pipeline import WORDS

SAID = {name: name for name in WORDS}


def rank(number: int, *actions: tuple[str, int, int, float, float]) -> dict[str, object]:
    names = ("kind", "stage", "number", "start_s", "end_s")
    columns = {name: [action[place] for action in actions] for place, name in enumerate(names)}
    return {"rank": number, "actions": columns}


def test_bars_say_which_micro_batch_of_which_stage_they_are() -> None:
    ranks = [
        rank(0, ("forward", 0, 0, 0.0, 0.001), ("forward", 0, 1, 0.001, 0.002)),
        rank(1, ("forward", 1, 0, 0.002, 0.0035), ("wait_activation", 1, 0, 0.0, 0.002)),
    ]
    panel = gantt_panel("g", "Measured", ranks, words=SAID, span_s=span(ranks))
    forward, waits = panel["traces"]
    assert (forward["base"], forward["y"]) == ([0.0, 0.001, 0.002], ["rank 0", "rank 0", "rank 1"])
    assert forward["text"][2] == "forward · micro_batch 0 · stage 1 · 1.5 ms"
    assert forward["marker"]["color"][0] == forward["marker"]["color"][2]
    assert forward["marker"]["color"][0] != forward["marker"]["color"][1]
    assert waits["text"] == ["exposed (wait_activation) · 2 ms"]
    assert panel["layout"]["xaxis"]["range"] == [0.0, 0.0035]


def test_kinds_differ_in_more_than_colour() -> None:
    ranks = [rank(0, ("forward", 0, 0, 0.0, 1.0), ("backward", 0, 0, 1.0, 2.0))]
    forward, backward = gantt_panel("g", "", ranks, words=SAID, span_s=(0, 2))["traces"]
    assert forward["marker"]["pattern"]["shape"] != backward["marker"]["pattern"]["shape"]


def test_a_step_of_too_many_actions_is_not_drawn() -> None:
    many = rank(0, *(("forward", 0, place, 0.0, 1.0) for place in range(MOST_BARS + 1)))
    panel = gantt_panel("g", "", [many], words=SAID, span_s=(0, 1))
    assert (panel["traces"], panel["note"]) == ([], "too_many")
    assert gantt_panel("g", "", [], words=SAID, span_s=(0, 1))["note"] == "empty"


def test_the_slow_rank_stands_out_whatever_the_unit() -> None:
    values = np.array([[0.8, 0.8, 0.4], [1e9, np.nan, 1e9], [np.nan] * 3])
    apart = deviation(values)
    assert apart[0].tolist() == [0.0, 0.0, -0.5]
    assert apart[1][0] == 0.0
    assert np.isnan(apart[1][1])
    links = deviation(np.array([[np.nan, 2.0], [4.0, np.nan]]), "all")
    assert (links[0, 1], links[1, 0]) == (-1 / 3, 1 / 3)
    told = told_extremes(["utilisation", "bandwidth", "none"], ["r0", "r1", "r2"], apart)
    assert told.startswith("utilisation: r2 -50%")


def test_a_heat_map_writes_its_values_and_escapes_what_it_is_told() -> None:
    texts, said = [["<b>", "2"]], {"median": "m", "empty": "-"}
    values = np.array([[1.0, 2.0]])
    panel = heat_panel("h", "Heat", ["row"], ["a", "b"], values, texts, words=said)
    [trace] = panel["traces"]
    assert trace["text"] == texts
    assert "&lt;b&gt;" in trace["hovertext"][0][0]
    assert panel["alone"]


def test_a_link_that_was_measured_stands_before_what_its_node_says() -> None:
    stated = {"b": {"latency_ms": 2.0, "mbps": None}, "gone": {"latency_ms": 9.0}}
    measured = {"links": {"a": {"latency_s": 0.003, "bytes_per_s": 1e6}}}
    nodes = [
        {"id": "a", "profile": {"links": stated}},
        {"id": "b", "profile": {"links": {"a": {"latency_ms": 7.0}}, "calibration": measured}},
    ]
    found = links_of(nodes)
    assert found is not None
    assert found.latency_ms[0, 1] == 2.0
    assert np.isnan(found.mbps[0, 1])
    assert (found.latency_ms[1, 0], found.mbps[1, 0]) == (3.0, 8.0)
    assert links_of([{"id": "a"}, {"id": "b", "profile": None}]) is None
