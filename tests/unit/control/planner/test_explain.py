"""Why a plan is what it is: every part of the explanation agrees with the plan."""

from __future__ import annotations

import json

import pytest

from control.planner.answer import MAX_BARS, answer

LAYER = {"fwd": 1.4e10, "params": 1.26e7, "out": 1e6, "act": 4e7}


def told(**changes):
    scenario = {
        "nodes": [
            {"name": "A-0", "type": "A", "flops": 1.5e14, "mem": 8e10, "t0": 0.0},
            {"name": "T-1", "type": "T", "flops": 2.5e13, "mem": 1.6e10, "t0": 0.0},
            {"name": "A-2", "type": "A", "flops": 1.5e14, "mem": 8e10, "t0": 0.0},
            {"name": "T-3", "type": "T", "flops": 2.5e13, "mem": 1.6e10, "t0": 0.0},
        ],
        "layers": [LAYER] * 8,
        "link": {"bw": 1.25e10, "lat": 2e-5},
        "global_batch": 64,
        "micro_batch_choices": [4, 8],
        "bucket_bytes": 2.5e7,
        **changes,
    }
    return answer(scenario, clock=iter(range(10**9)).__next__)


def test_an_answer_is_json_and_has_what_the_contract_names():
    found = told()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert {"plan", "step_time_s", "lower_bound_s", "search_s", "why", "rejected"} <= set(found)
    assert set(found["plan"]) == {
        *("micro_batch", "schedule", "zero", "recompute", "bucket_bytes", "pipelines")
    }
    assert all(isinstance(sentence, str) and sentence.endswith(".") for sentence in found["why"])


def test_each_nodes_time_is_shared_out_whole():
    for share in told()["node_shares"]:
        parts = [value for key, value in share.items() if key != "node"]
        assert sum(parts) == pytest.approx(1)
        assert all(part >= -1e-9 for part in parts)


def test_rejected_plans_are_no_better_and_say_what_they_are():
    found = told()
    families = [each["family"] for each in found["rejected"]]
    assert len(set(families)) == len(families)
    assert {"even split", "another micro-batch"} <= set(families)
    for each in found["rejected"]:
        takes = each["step_time_s"]
        assert takes is None or takes >= found["step_time_s"] * (1 - 1e-9)
    slow = next(each for each in found["rejected"] if each["family"] == "even split")
    assert any("even split" in sentence for sentence in found["why"])
    assert slow["step_time_s"] > 1.5 * found["step_time_s"]


def test_a_faster_bottleneck_is_felt_and_more_memory_is_not():
    found = told()
    felt = {each["change"]: each["step_time_s"] for each in found["sensitivities"]}
    assert felt["A nodes 10 % faster"] < found["step_time_s"]
    assert felt["1 GiB more memory on each node"] == pytest.approx(found["step_time_s"])
    assert felt["twice the global batch"] < 2 * found["step_time_s"]


def test_an_unused_node_is_named_with_what_it_would_cost():
    nodes = [
        {"name": "fast", "flops": 1e14, "mem": 1e11},
        {"name": "far", "flops": 1e11, "mem": 1e11},
    ]
    found = told(nodes=nodes, link={"bw": 1e8, "lat": 0.05})
    assert [each["nodes"] for each in found["unused"]] == [["far"]]
    takes = found["unused"][0]["step_time_s"]
    assert takes is None or takes > found["step_time_s"]
    assert any(sentence.startswith("far is not used") for sentence in found["why"])


def test_memory_that_binds_is_told():
    nodes = [{"name": f"n{at}", "flops": 1e14, "mem": 2.2e9} for at in range(2)]
    found = told(nodes=nodes)
    assert any("Memory binds" in sentence for sentence in found["why"])
    assert any("memory is needed" in warning for warning in found["warnings"])
    for room in found["memory"]:
        assert room["need"] <= room["have"]


def test_the_bars_fill_the_predicted_pipelines():
    found = told()
    chart = found["gantt"]
    assert chart["complete"]
    assert len(chart["bars"]) <= MAX_BARS
    for pipeline, end in enumerate(chart["pipelines_end_s"]):
        bars = [bar for bar in chart["bars"] if bar["pipeline"] == pipeline]
        assert max(bar["end_s"] for bar in bars) == pytest.approx(end)
    assert found["step_time_s"] == max(*chart["pipelines_end_s"], chart["sync_end_s"])


def test_formulas_stand_with_their_right_meaning():
    found = told(max_replicas=1)
    text = " ".join(found["why"])
    p = len(found["plan"]["pipelines"][0]["nodes"])
    m = found["plan"]["pipelines"][0]["micro_batches"]
    assert f"(p-1)/m = {(p - 1) / m:.1%}" in text
    assert f"(p-1)/(m+p-1) = {(p - 1) / (m + p - 1):.1%}" in text
    assert "2(n-1)/n" in " ".join(told(max_stages=1)["why"])
