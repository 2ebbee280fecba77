"""What no plan can be made for is refused by name, and what is odd gets the best plan there is."""

from __future__ import annotations

import contextlib

import pytest

from control.planner.answer import answer
from control.planner.explain import explain
from control.planner.merging import MOST_KINDS, coarse
from control.planner.placing import place
from control.planner.reading import read_scenario
from control.planner.search import search
from tests.fakes.bad_scenarios import BAD, GOOD, ODD, WHOLE, changed, paths_in
from trainmaster.errors import SpecError

BIG = {"layers": [{"fwd": 2e9, "params": 2e8, "out": 1e5, "act": 1e6}] * 4}
"""Too much for one of the nodes."""
UNJOINED = [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    ("scenario", "where", "what"),
    BAD,
)
def test_a_bad_scenario_is_refused_with_the_place_and_the_mend(scenario, where, what):
    with pytest.raises(SpecError) as caught:
        read_scenario(scenario)
    assert any(
        problem.path == where and what in problem.message for problem in caught.value.problems
    ), [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: f"{odd!r:.20}")
def test_whatever_stands_anywhere_is_read_or_refused(odd):
    for path in paths_in():
        with contextlib.suppress(SpecError):
            read_scenario(changed(*path, to=odd, of=WHOLE))


def test_all_problems_are_told_at_once():
    scenario = changed("nodes", 0, "flops", to=0)
    scenario["global_batch"] = -1
    with pytest.raises(SpecError) as caught:
        read_scenario(scenario)
    assert {problem.path for problem in caught.value.problems} == {
        "nodes[0].flops",
        "global_batch",
    }


@pytest.mark.parametrize(
    "scenario",
    [
        changed("layers", to=[{"fwd": 2e9, "params": 1e10, "out": 1e5, "act": 1e6}] * 4),
        {**GOOD, "max_stages": 1, "nodes": [{**each, "mem": 5e7} for each in GOOD["nodes"]]},
    ],
)
def test_a_model_that_fits_nowhere_is_refused_with_the_numbers(scenario):
    with pytest.raises(SpecError, match=r"fits in no way.*bytes"):
        search(read_scenario(scenario))


@pytest.mark.parametrize("long", [{"stall_s": 1e20}, {"stall_s": 1.0, "restart_s": 1e20}])
def test_failures_that_leave_no_time_to_train_are_named(long):
    nodes = [{**each, "mtbf_s": 1e6} for each in GOOD["nodes"]]
    scenario = read_scenario({**GOOD, "nodes": nodes, "objective": "goodput", **long})
    with pytest.raises(SpecError, match=r"no plan gets on.*mtbf_s 1e\+06 at best"):
        search(scenario)


def test_layers_without_parameters_are_planned_for():
    bare = {**GOOD, "layers": [{**each, "params": 0} for each in GOOD["layers"]]}
    found, good = search(read_scenario(bare)).verdict, search(read_scenario(GOOD)).verdict
    assert 0 < found.step_s <= good.step_s


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"min_replicas": 3}, "min_replicas is 3, but 2 nodes and 8 micro-batches make at most 2"),
        ({"min_replicas": 2, "micro_batch_choices": [8]}, "1 micro-batches make at most 1"),
        ({"min_replicas": 2, **BIG}, "min_replicas asks for 2 copies"),
        ({**BIG, "bw": UNJOINED}, "cannot go over a, which has no links"),
    ],
)
def test_it_is_said_what_is_in_the_way_beside_memory(changes, told):
    with pytest.raises(SpecError, match=told):
        search(read_scenario({**GOOD, **changes}))


@pytest.mark.parametrize("odd", ["", "x", None, [1, 2], {}])
def test_what_stands_between_a_node_and_itself_is_not_read(odd):
    assert (read_scenario(changed("bw", 0, to=[odd, 1e9])).bw == read_scenario(GOOD).bw).all()


def test_layers_too_light_to_be_seen_beside_the_heaviest_are_planned_for():
    heavy = {"fwd": 9e29, "params": 1e6, "out": 1e5, "act": 1e6}
    assert search(read_scenario(changed("layers", 0, to=heavy))).draft.nodes >= 1


def test_nodes_without_a_link_are_not_joined():
    scenario = {**GOOD, "bw": UNJOINED}
    found = search(read_scenario(scenario))
    assert found.draft.nodes == 1
    assert (
        "no links join a, b to any other node, there and back"
        in explain(found, place(found.draft, found.scenario)).warnings
    )
    one_way = changed("bw", to=[[0.0, 1e9], [0.0, 0.0]])
    assert search(read_scenario(one_way)).draft.nodes == 1


def test_links_may_differ_by_direction():
    good = {**GOOD, "global_batch": 64}
    scenario = {**good, "bw": [[0.0, 1e9], [1e5, 0.0]]}
    there = search(read_scenario(scenario))
    assert there.verdict.step_s > search(read_scenario(good)).verdict.step_s


def test_one_node_needs_no_links():
    scenario = {key: GOOD[key] for key in ("layers", "global_batch", "micro_batch_choices")}
    found = search(read_scenario({**scenario, "nodes": GOOD["nodes"][:1]}))
    assert found.verdict.step_s == pytest.approx(8 * 4 * 3 * 2e9 / 4e12)


def test_a_million_micro_batches_are_no_more_work_than_a_hundred():
    found = search(read_scenario({**GOOD, "global_batch": 1_000_000}))
    assert found.verdict.step_s == pytest.approx(1_000_000 * 4 * 3 * 2e9 / 5e12, rel=0.05)


@pytest.mark.slow
def test_ten_thousand_nodes_are_planned_for():
    told = answer(
        {
            "node_counts": {"A": 6000, "B": 4000},
            "node_types": {"A": {"flops": 2e12, "mem": 1e10}, "B": {"flops": 1e12, "mem": 1e10}},
            "link": {"bw": 1e10, "lat": 1e-6},
            "layers": [{"fwd": 2e9, "params": 1e6, "out": 1e5, "act": 1e6}] * 8,
            "global_batch": 100_000,
            "micro_batch_choices": [1, 10],
            "bucket_bytes": 2.5e7,
        },
        clock=iter(range(10**9)).__next__,
    )
    nodes = [node for each in told["plan"]["pipelines"] for node in each["nodes"]]
    assert len(set(nodes)) == len(nodes) > 1000
    shares = [each["micro_batches"] for each in told["plan"]["pipelines"]]
    assert sum(shares) * told["plan"]["micro_batch"] == 100_000


def test_of_thousands_of_unlike_nodes_those_that_are_similar_count_as_the_worst_of_them():
    nodes = [
        {"name": f"n{at}", "flops": 1e12 * (1 + at / 600), "mem": 1e10 - at} for at in range(600)
    ]
    given = {key: GOOD[key] for key in ("layers", "global_batch", "micro_batch_choices")}
    link = {"bw": 1e9, "lat": 1e-5}
    s = coarse(read_scenario({**given, "nodes": nodes, "link": link}))
    assert len(s.kinds) <= MOST_KINDS
    assert sorted(node for members in s.members for node in members) == list(range(600))
    for node, kind in enumerate(s.kind_of):
        assert s.kinds[kind].flops <= nodes[node]["flops"]
        assert s.kinds[kind].mem <= nodes[node]["mem"]
        assert nodes[node]["flops"] < 1.05 * s.kinds[kind].flops
    assert "nodes of 600 kinds: those that are within 2%" in s.warnings[-1]
    few = read_scenario(GOOD)
    assert coarse(few) is few


def test_more_nodes_than_can_be_meant_are_refused():
    with pytest.raises(SpecError, match="more than 20000 nodes"):
        read_scenario({**GOOD, "node_counts": {"A": 10**9}, "node_types": {"A": {}}})


def test_a_key_that_is_not_known_is_told_and_not_used():
    told = answer({**GOOD, "wind": 3, "id": "S99"}, clock=iter(range(10**9)).__next__)
    assert [each for each in told["warnings"] if "wind" in each]
    assert not [each for each in told["warnings"] if "S99" in each]
