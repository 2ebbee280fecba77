"""ZeRO 0 to 3, recompute, offload, tensor parallelism, failures and prices: the search finds what
trying everything finds, and what is more is never worse.
"""

from __future__ import annotations

import copy
import math
import random
from typing import Any

import pytest

from control.planner.reading import read_scenario
from control.planner.search import Found, search
from tests.fakes.every_draft import least_worth
from trainmaster.errors import SpecError


def scenario(seed: int) -> dict[str, Any]:
    """A tiny cluster in which memory, updates, failures and prices all may matter."""
    draw = random.Random(seed)
    nodes = draw.randint(1, 3)
    pairs = range(nodes)
    speeds = [1e8, 1e9, 1e10]
    goal = draw.choice([None, "goodput", "price"])
    given: dict[str, Any] = {
        "nodes": [
            {
                "name": f"n{at}",
                "flops": draw.choice([1e12, 2e12, 5e12]),
                "mem": draw.choice([1.5e8, 3e8, 1e11]),
                "host_mem": draw.choice([2e8, 1e11]),
                "memory_bw": draw.choice([1e10, 1e11]),
                "host_bw": draw.choice([1e9, 1e10]),
                "host_link_bw": draw.choice([1e9, 1e10]),
                "mtbf_s": draw.choice([2e3, 1e5]),
                "price": draw.choice([1.0, 3.0]),
            }
            for at in pairs
        ],
        "layers": [
            {
                "fwd": draw.uniform(1e9, 8e9),
                "params": draw.choice([1e6, 5e6, 1e7]),
                "out": 1e5,
                "act": draw.choice([1e6, 2e7]),
                "act_selective": 5e5,
            }
            for _ in range(draw.randint(1, 4))
        ],
        "bw": [[0.0 if i == j else draw.choice(speeds) for j in pairs] for i in pairs],
        "lat": [[0.0 if i == j else 1e-5 for j in pairs] for i in pairs],
        "global_batch": draw.choice([2, 4]),
        "micro_batch_choices": draw.choice([[1], [1, 2]]),
        "zero_choices": draw.choice([[0, 1, 2, 3], [2, 3], [0, 3]]),
        "recompute_choices": draw.choice([[False], [False, "selective", True]]),
        "offload_choices": draw.choice([[False], [False, True]]),
        "schedules": ["1f1b"],
    }
    if goal is not None:
        given |= {"objective": goal, "stall_s": 2.0, "write_s": 9.0, "restart_s": 60.0}
    return given


def found(given: dict[str, Any]) -> Found | None:
    try:
        return search(read_scenario(given))
    except SpecError:
        return None


def worth(given: dict[str, Any]) -> float:
    best = found(given)
    return best.verdict.worth if best else math.inf


@pytest.mark.parametrize("seed", range(30))
def test_the_search_finds_what_trying_everything_finds(seed):
    given = scenario(seed)
    optimum, best = least_worth(read_scenario(given)), found(given)
    if best is None:
        assert optimum == math.inf
        return
    assert best.exact
    assert best.model.fits(best.draft)
    assert best.verdict.worth == pytest.approx(optimum, rel=1e-9)


@pytest.mark.parametrize("seed", range(40, 50))
def test_more_choices_and_more_of_anything_are_never_worse(seed):
    given = {**scenario(seed), "objective": "goodput", "stall_s": 2.0}
    before = worth(given)
    for key, more in (("mem", 2.0), ("flops", 1.5), ("mtbf_s", 3.0), ("memory_bw", 2.0)):
        changed = copy.deepcopy(given)
        for node in changed["nodes"]:
            node[key] *= more
        assert worth(changed) <= before * (1 + 1e-9), key
    freer = {**given, "zero_choices": [0, 1, 2, 3], "recompute_choices": [False, True, "selective"]}
    assert worth({**freer, "offload_choices": [False, True]}) <= before * (1 + 1e-9)


def test_failures_make_a_plan_smaller():
    """Six nodes are faster than fewer; where each fails twice an hour they give less."""
    given = {
        "nodes": [{"name": f"n{at}", "flops": 1e12, "mem": 1e11} for at in range(6)],
        "layers": [{"fwd": 1e9, "params": 1e6, "out": 1e5, "act": 1e6}] * 2,
        "bw": [[1e8] * 6] * 6,
        "lat": [[1e-5] * 6] * 6,
        "global_batch": 24,
        "micro_batch_choices": [1],
    }
    plain = found(given)
    failing = [{**each, "mtbf_s": 1800.0} for each in given["nodes"]]
    goal = {"objective": "goodput", "stall_s": 20.0, "restart_s": 900.0}
    fewer = found({**given, **goal, "nodes": failing})
    assert plain is not None
    assert fewer is not None
    assert plain.draft.nodes > fewer.draft.nodes
    saving = fewer.scenario.worth.saving(fewer.verdict.step_s, fewer.draft.counts(1))
    assert saving is not None
    assert fewer.verdict.worth == pytest.approx(fewer.verdict.step_s * (1 + saving.overhead))


def test_the_cheapest_plan_is_not_the_fastest():
    given = scenario(7) | {"zero_choices": [0], "objective": "price", "stall_s": 2.0}
    given["nodes"] = [
        {"name": "fast", "flops": 4e12, "mem": 1e11, "price": 8.0},
        {"name": "slow", "flops": 1e12, "mem": 1e11, "price": 1.0},
    ]
    given |= {"bw": [[0, 1e9], [1e9, 0]], "lat": [[0, 1e-5], [1e-5, 0]]}
    cheapest = found(given)
    assert cheapest is not None
    assert cheapest.draft.nodes == 1
    assert cheapest.scenario.kinds[cheapest.draft.pipes[0].kinds[0]].price == 1.0


def four_on_two_machines(**more: Any) -> dict[str, Any]:
    fast, slow = 1e11, 1e8
    return {
        "nodes": [
            {"name": f"n{at}", "host": f"m{at // 2}", "flops": 1e12, "mem": 1e11} for at in range(4)
        ],
        "layers": [{"fwd": 4e9, "params": 4e6, "out": 1e5, "act": 1e6}] * 2,
        "bw": [[fast if i // 2 == j // 2 else slow for j in range(4)] for i in range(4)],
        "lat": [[1e-6] * 4] * 4,
        "global_batch": 2,
        "micro_batch_choices": [1],
        **more,
    }


def test_nodes_of_one_machine_share_layers_where_that_is_faster():
    alone = found(four_on_two_machines())
    both = found(four_on_two_machines(tensor_choices=[1, 2]))
    assert alone is not None
    assert both is not None
    assert both.draft.setting.tensor == 2
    assert both.verdict.step_s < alone.verdict.step_s
    assert all(name in {"n0+n1", "n2+n3"} for name in both.scenario.names)
    slow = four_on_two_machines(tensor_choices=[1, 2])
    slow["bw"] = [[1e6] * 4] * 4
    within = found(slow)
    assert within is not None
    assert within.draft.setting.tensor == 1


def test_no_machine_with_as_many_nodes_is_a_refusal_by_name():
    with pytest.raises(SpecError, match="no machine has 3 equal nodes"):
        search(read_scenario(four_on_two_machines(tensor_choices=[3])))


def test_other_schedules_are_tried_where_they_are_allowed():
    given = four_on_two_machines(max_replicas=1, layers=[
        {"fwd": 4e9, "params": 4e6, "out": 1e3, "act": 1e6}
    ] * 8, global_batch=8)  # fmt: skip
    plain = found(given)
    other = found({**given, "schedules": ["1f1b", "interleaved_1f1b", "zbv_zero_bubble"]})
    assert plain is not None
    assert other is not None
    assert other.verdict.step_s < plain.verdict.step_s
    assert other.draft.setting.virtual == 2
    assert not other.exact


def test_sums_that_slow_compute_down_make_the_last_backward_longer():
    layer = {"fwd": 1e12, "params": 1e6, "out": 1e5, "act": 1e6}
    given = {
        "nodes": [{"flops": 1e12, "mem": 1e12, "t0": 0.0}] * 2,
        "link": {"bw": 2e6 / 0.4, "lat": 0.0},
        "layers": [layer, layer],
        "global_batch": 2,
        "micro_batch_choices": [1],
        "bucket_bytes": 1.0,
        "overlap": True,
        "min_replicas": 2,
    }

    def step_s(slowdown: float) -> float:
        nodes = [{**each, "overlap_slowdown": slowdown} for each in given["nodes"]]
        return search(read_scenario({**given, "nodes": nodes})).verdict.step_s

    # A forward and a backward of two layers take 6 s; the sum of each layer 0.4 s, of which the
    # last layer's runs beside the first layer's backward of 2 s.
    assert step_s(1.0) == pytest.approx(6.4)
    assert step_s(1.25) == pytest.approx(6.4 + 0.4 * (1 - 1 / 1.25))
    with pytest.raises(SpecError, match="at least 1"):
        step_s(0.5)
