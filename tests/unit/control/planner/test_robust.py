"""Plans that hold up when figures are a little wrong."""

from typing import Any

import pytest

from control.planner.answer import answer
from tests.fakes.scenarios import small_scenario
from trainmaster.errors import SpecError


def asked(scenario: dict[str, Any], **robust: Any) -> dict[str, Any]:
    return answer({**scenario, "robust": robust}, clock=lambda: 0.0)


def test_the_chosen_plan_holds_up_at_least_as_well_as_the_fastest() -> None:
    others = 0
    for seed in range(40):
        scenario = small_scenario(seed)
        try:
            plain = answer(scenario, clock=lambda: 0.0)
        except SpecError:
            continue
        steady = asked(scenario, sigma=0.3)
        told = steady["robust"]
        assert told["p50_step_time_s"] <= told["p90_step_time_s"] <= told["fastest_p90_step_time_s"]
        assert steady["step_time_s"] >= plain["step_time_s"] * (1 - 1e-9)
        assert steady["step_time_s"] <= plain["step_time_s"] * 1.1 * (1 + 1e-9)
        assert plain["robust"] is None
        if steady["plan"] != plain["plan"]:
            others += 1
            assert not steady["exact"]
            assert any("the plan that is best as they stand" in each for each in steady["why"])
    assert others


def test_where_figures_are_as_good_as_sure_it_is_the_fastest_plan_and_always_the_same() -> None:
    scenario = small_scenario(7)
    plain = answer(scenario, clock=lambda: 0.0)
    steady = asked(scenario, sigma=1e-9, samples=4)
    assert steady == asked(scenario, sigma=1e-9, samples=4)
    assert steady["plan"] == plain["plan"]
    assert steady["robust"]["p90_step_time_s"] == pytest.approx(plain["step_time_s"])


@pytest.mark.parametrize(
    ("robust", "path"),
    [
        ("yes", "robust"),
        ({}, "robust.sigma"),
        ({"sigma": 1.0}, "robust.sigma"),
        ({"sigma": 0.1, "samples": 0}, "robust.samples"),
        ({"sigma": 0.1, "seed": 1}, "robust.seed"),
    ],
)
def test_what_is_wrong_is_told_with_its_path(robust: Any, path: str) -> None:
    scenario = {**small_scenario(7), "robust": robust}
    with pytest.raises(SpecError) as refused:
        answer(scenario, clock=lambda: 0.0)
    assert [each.path for each in refused.value.problems] == [path]


def test_more_nodes_than_can_be_sampled_are_refused() -> None:
    nodes = [{"name": f"n{index}", "flops": 1e12, "mem": 1e10} for index in range(129)]
    scenario = {
        "nodes": nodes,
        "link": {"bw": 1e9, "lat": 1e-5},
        "layers": [{"fwd": 2e9, "params": 1e6, "out": 1e5, "act": 1e6}] * 4,
        "global_batch": 129,
        "robust": {"sigma": 0.1},
    }
    with pytest.raises(SpecError, match="at most 128 nodes"):
        answer(scenario, clock=lambda: 0.0)
