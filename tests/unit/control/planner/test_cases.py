"""The given cases, where they lie beside the repository: every optimum found, every prediction that
of the reference, the large ones faster than their constructive references.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from control.planner.answer import answer, plan_json
from control.planner.cost import Model
from control.planner.placing import place
from control.planner.reading import read_scenario
from control.planner.search import search
from control.planner.setting import Draft, Pipe, Setting
from tests.fakes.rcm_oracle import Oracle

FILE = Path(__file__).parents[5] / "shared" / "planner" / "cases.json"
GIVEN: dict[str, Any] = json.loads(FILE.read_text()) if FILE.is_file() else {}
CASES = {case["id"]: case for case in GIVEN.get("cases", [])}
LARGE = {case["id"]: case for case in GIVEN.get("large_cases", [])}
pytestmark = pytest.mark.skipif(not GIVEN, reason="../shared/planner/cases.json is not here")
KINDS = ("baseline_even", "baseline_proportional", "optimum_same_RS", "optimum")


@pytest.mark.parametrize("name", CASES or ["none"])
def test_every_plan_of_a_case_is_predicted_as_the_reference_does(name):
    case = CASES[name]
    model = Model(read_scenario(case["scenario"]))
    for kind in KINDS:
        given, plan = case[kind], case[kind]["plan"]
        setting = Setting(
            plan["micro_batch"],
            plan["schedule"],
            plan["zero"],
            "full" if plan["recompute"] else "none",
            plan["bucket_bytes"],
        )
        pipes = tuple(
            Pipe(
                tuple(model.scenario.kind_of[node] for node in each["nodes"]),
                tuple(each["layers"]),
                each["micro_batches"],
            )
            for each in plan["pipelines"]
        )
        draft = Draft(setting, pipes)
        verdict = model.verdict(draft)
        assert verdict.step_s == pytest.approx(given["step_time"], rel=1e-8)
        assert verdict.sync_end_s == pytest.approx(given["sync_end"], rel=1e-8)
        assert model.fits(draft) == given["memory_ok"]
        needs = [list(model.memory(pipe, setting, draft.replicas)) for pipe in pipes]
        for need, expected in zip(needs, given["memory_bytes"], strict=True):
            assert need == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("name", CASES or ["none"])
def test_the_optimum_of_every_case_is_found(name):
    case = CASES[name]
    found = search(read_scenario(case["scenario"]))
    assert found.exact
    assert found.verdict.step_s <= case["optimum"]["step_time"] * (1 + 1e-6)
    plan = plan_json(found.draft, place(found.draft, found.scenario))
    oracle = Oracle(case["scenario"])
    assert oracle.fits(plan)
    assert oracle.step_time(plan) == pytest.approx(found.verdict.step_s, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE or ["none"])
def test_large_cases_are_faster_than_their_references(name):
    case = LARGE[name]
    told = answer(case, clock=lambda: 0.0)
    assert told["lower_bound_s"] == pytest.approx(case["work_lower_bound_s"], rel=1e-6)
    assert told["step_time_s"] < case["reference_step_time_s"]
    assert told["gap"] < case["reference_gap"] * 0.85
    nodes = [node for each in told["plan"]["pipelines"] for node in each["nodes"]]
    assert len(set(nodes)) == len(nodes) <= sum(case["node_counts"].values())
    for each in told["plan"]["pipelines"]:
        assert sum(each["layers"]) == 96
        assert len(each["layers"]) == len(each["nodes"])
    shares = [each["micro_batches"] for each in told["plan"]["pipelines"]]
    assert sum(shares) * told["plan"]["micro_batch"] == case["global_batch"]
