"""Rules as folds over a window: when they are pending, when they fire, and when it is over."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.incidents.rungs import CARRIERS
from control.rules import packs
from control.rules.backtest import failed_tests
from control.rules.watching import judge_all
from tests.fakes import snapshots as at
from trainmaster.errors import NotFoundError
from trainmaster.rule import Rule

NAN = math.nan
INF = math.inf


def rule(condition="above", value=10.0, *, metric="grad_norm", **lasting):
    when = {"condition": condition, **({} if condition == "non_finite" else {"value": value})}
    return Rule.model_validate(
        {"name": "r", "metric": metric, "when": when, "for": lasting or {"steps": 1}}
    )


def judge(found, values, *, first_step=1, step_time_s=1.0):
    steps = enumerate(values, first_step)
    return at.evaluate(found, at.samples(steps, step_time_s=step_time_s))


def test_pending_then_firing_with_the_first_bad_step_not_the_one_it_fired_at():
    three = rule(steps=3)
    assert judge(three, [1, 11, 12]).state == "pending"
    fired = judge(three, [1, 11, 12, 13])
    assert (fired.state, fired.first_bad_step, fired.last_bad_step) == ("firing", 2, 4)
    assert fired.firings[0].fired_step == 4
    assert (fired.value, fired.threshold) == (13, 10.0)


def test_one_good_value_breaks_a_row():
    assert judge(rule(steps=3), [11, 12, 1, 13, 14]).state == "pending"
    assert judge(rule(steps=3), [11, 12, 1]).state == "inactive"


def test_within_counts_bad_values_among_the_last_steps():
    few = rule(steps=3, within=5)
    assert judge(few, [11, 1, 11, 1, 11]).state == "firing"
    assert judge(few, [11, 1, 1, 11, 1, 11]).state == "pending"
    assert judge(few, [11, 1, 1, 1, 1, 1]).state == "inactive"


def test_it_is_over_when_it_has_been_good_for_as_long():
    assert judge(rule(steps=2), [11, 12, 1]).state == "firing"
    over = judge(rule(steps=2), [11, 12, 1, 1])
    assert over.state == "resolved"
    assert over.firings[0].resolved_step == 4
    within = rule(steps=2, within=3)
    assert judge(within, [11, 12, 1, 1]).state == "firing"
    assert judge(within, [11, 12, 1, 1, 1]).state == "resolved"


def test_seconds_are_measured_by_the_clock_of_the_ranks():
    lasting = rule(seconds=3)
    assert judge(lasting, [11, 11, 11]).state == "pending"
    assert judge(lasting, [11, 11, 11, 11]).state == "firing"
    assert judge(lasting, [11, 11], step_time_s=3.0).state == "firing"
    assert judge(lasting, [11, 1, 11, 11]).state == "pending"


@pytest.mark.parametrize("condition", ["above", "below", "non_finite"])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_value_that_is_not_finite_is_bad_under_every_condition(condition, value):
    assert judge(rule(condition), [value]).state == "firing"


def test_below_fires_below():
    assert judge(rule("below", 0.9), [0.95, 0.5]).state == "firing"


def test_a_missing_value_is_no_evidence():
    assert judge(rule(steps=2), [11, None, None]).state == "pending"
    assert judge(rule(steps=2), [11, None, 11]).state == "firing"
    assert judge(rule("non_finite", steps=3), [None] * 10).state == "inactive"


def test_a_loss_that_stays_away_is_not_finite():
    lost = rule("non_finite", metric="loss", steps=3)
    assert judge(lost, [3.0, None, None]).state == "inactive"
    fired = judge(lost, [3.0, None, None, None])
    assert (fired.state, fired.first_bad_step) == ("firing", 2)


def test_firing_twice_in_one_window_is_two_firings():
    found = judge(rule(steps=1), [11, 1, 1, 12, 1])
    assert [each.first_bad_step for each in found.firings] == [1, 4]


def test_rules_that_do_not_apply_are_not_judged():
    off = rule().model_copy(update={"enabled": False})
    by_rank = rule().model_copy(update={"scope": "rank"})
    other = rule(metric="latency_ms")
    windows = {"grad_norm": at.samples([(1, 11.0)])}
    snapshot = at.running(rules=(off, by_rank, other), windows=windows)
    assert judge_all(snapshot) == ()


values = st.lists(st.one_of(st.none(), st.floats(allow_nan=True)), max_size=60)
lastings = st.one_of(
    st.builds(lambda n: {"steps": n}, st.integers(1, 5)),
    st.builds(
        lambda n, extra: {"steps": n, "within": n + extra}, st.integers(1, 5), st.integers(0, 9)
    ),
    st.builds(lambda s: {"seconds": s}, st.floats(0.1, 20)),
)


@given(values, lastings, st.sampled_from(["above", "below", "non_finite"]))
def test_the_fold_is_coherent(found, lasting, condition):
    judged = judge(rule(condition, **lasting), found)
    troubled = judged.state in {"pending", "firing"}
    assert troubled == (judged.first_bad_step is not None)
    assert (judged.state == "firing") == any(each.resolved_step is None for each in judged.firings)
    for firing in judged.firings:
        assert firing.first_bad_step <= firing.fired_step
    for earlier, later in zip(judged.firings, judged.firings[1:], strict=False):
        assert earlier.resolved_step is not None
        assert earlier.resolved_step < later.first_bad_step


@settings(max_examples=40, deadline=None)
@given(values)
def test_a_rule_rewinds_with_its_window(found):
    """Judging a prefix is what it was when only the prefix was known: no state is kept."""
    three = rule(steps=3, within=10)
    for length in range(len(found)):
        prefix = judge(three, found[:length]).firings
        whole = judge(three, found).firings
        assert [each.fired_step for each in prefix] == [
            each.fired_step for each in whole if each.fired_step <= length
        ]


@pytest.mark.parametrize("name", packs.NAMES)
def test_every_rule_of_a_pack_is_described_and_others_than_numeric_ones_move_a_run_once_at_most(
    name,
):
    for each in packs.load(name):
        assert each.description
        if each.mode == "act" and each.metric not in {"loss", "grad_norm"}:
            assert {action.action for action in each.actions} <= {"degrade", "rebalance"}
            assert each.max_actions == 1
        assert bool(each.actions) == (each.mode == "act")
        for action in each.actions:
            assert action.action in CARRIERS


@pytest.mark.parametrize("name", packs.NAMES)
def test_a_pack_passes_its_own_tests(name):
    assert failed_tests(packs.read(name)) == []


def test_an_unknown_pack_is_told_with_those_that_are_known():
    with pytest.raises(NotFoundError, match="known are default"):
        packs.load("nope")
