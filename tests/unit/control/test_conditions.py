"""Each condition on made-up series: what it finds bad, and what it leaves alone."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.rules.backtest import backtest
from control.rules.evaluate import Watch
from control.rules.frame import Column, Frame, column_of
from control.rules.history import history_of
from control.rules.names import columns_of
from trainmaster import actions, conditions
from trainmaster.actions import Chooser, Hold
from trainmaster.conditions import CustomCondition
from trainmaster.rule import Rule

NAN, INF = math.nan, math.inf


def rule(when, *, metric="grad_norm", **changes):
    return Rule.model_validate({"name": "r", "metric": metric, "when": when, **changes})


def firings(found, columns, *, at=None):
    table = columns_of({name: column_of(values) for name, values in columns.items()})
    length = len(next(iter(columns.values())))
    history = history_of(
        "made up",
        range(1, length + 1),
        table.of_run,
        at=at or range(length),
        of_ranks=table.of_ranks,
        seats=table.seats,
    )
    told = backtest([found], history)
    assert told["not_applicable_because"] == {}
    return [
        (each["scope"], each["first_bad_step"], each["fired_step"]) for each in told["findings"]
    ]


def steady(length, level=1.0, noise=0.05, seed=0):
    draw = random.Random(seed)
    return [level * (1 + draw.gauss(0, noise)) for _ in range(length)]


def test_ratio_to_median_compares_with_good_values_alone():
    spiky = rule({"condition": "ratio_to_median", "above": 3})
    values = [*steady(100), 10.0, 1.0, 20.0, NAN, *steady(50), 2.9]
    assert [step for _, step, _ in firings(spiky, {"grad_norm": values})] == [101, 103]
    # Forty bad values in a row, and the next one is still measured by what was before them.
    long = [*steady(100), *[10.0] * 40, *steady(20), 10.0]
    assert [step for _, step, _ in firings(spiky, {"grad_norm": long})] == [101, 161]


def test_a_level_that_lasts_as_long_as_the_baseline_is_the_new_normal():
    spiky = rule({"condition": "ratio_to_median", "above": 3, "window": 32, "min_samples": 16})
    values = [*steady(64), *steady(64, level=10), 100.0, *steady(8, level=10)]
    assert [step for _, step, _ in firings(spiky, {"grad_norm": values})] == [65, 129]


def test_vanishing_is_a_ratio_from_below_and_says_nothing_of_a_norm_that_is_nothing():
    gone = rule({"condition": "ratio_to_median", "below": 0.01}, **{"for": {"steps": 5}})
    assert firings(gone, {"grad_norm": [*steady(100), *[0.001] * 10]}) == [("run", 101, 105)]
    assert firings(gone, {"grad_norm": [0.0] * 200}) == []


def test_robust_z_needs_both_sigmas_and_a_share():
    outlying = rule({"condition": "robust_z", "above": 6, "least_ratio": 0.15}, metric="loss")
    quiet = [*steady(100, level=3, noise=0.001), 3.2, 3.5]
    assert firings(outlying, {"loss": quiet}) == [("run", 102, 102)]
    noisy = [*steady(100, level=3, noise=0.2), 4.5]
    assert firings(outlying, {"loss": noisy}) == []


def test_hysteresis_keeps_what_fires_until_it_is_well_below():
    flapping = {"memory_used_ratio": [0.5, 0.91, 0.89, 0.91, 0.89, 0.5, 0.91]}
    plain = rule({"condition": "above", "value": 0.9}, metric="memory_used_ratio")
    calm = rule({"condition": "above", "value": 0.9, "clear": 0.8}, metric="memory_used_ratio")
    assert [step for _, step, _ in firings(plain, flapping)] == [2, 4, 7]
    assert [step for _, step, _ in firings(calm, flapping)] == [2, 7]


def test_level_change_sees_a_small_lasting_change_and_no_noise():
    slower = rule({"condition": "level_change", "fall": 0.05}, metric="tokens_per_s")
    [(_, first, fired)] = firings(
        slower, {"tokens_per_s": [*steady(300, 1000, 0.02), *steady(100, 900, 0.02)]}
    )
    assert 300 < first <= fired <= 316
    assert firings(slower, {"tokens_per_s": steady(2000, 1000, 0.05)}) == []


def test_missing_begins_with_the_first_missing_step_and_goes_by_how_often_it_is_told():
    lost = rule({"condition": "missing_for", "steps": 3}, metric="loss")
    assert firings(lost, {"loss": [3.0, 2.9, None, None, 2.8]}) == []
    assert firings(lost, {"loss": [3.0, 2.9, None, None, None, 2.8]}) == [("run", 3, 5)]
    every_third = [3.0, None, None] * 4
    assert firings(lost, {"loss": [*every_third, *[None] * 3]}) == []
    assert firings(lost, {"loss": [*every_third, *[None] * 8]}) == [("run", 11, 19)]
    assert firings(lost, {"loss": [None] * 50}) == [], "it was never told at all"


def test_frozen_is_the_same_to_the_bit_and_had_changed_before():
    frozen = rule({"condition": "frozen", "steps": 2})
    assert firings(frozen, {"grad_norm": [1.0, 2.0, 2.0, 2.0, 2.0, 3.0]}) == [("run", 3, 4)]
    assert firings(frozen, {"grad_norm": [1.0, 2.0, None, 2.0, NAN, 2.0]}) == [("run", 4, 6)]
    assert firings(frozen, {"grad_norm": [1.0, 2.0, 2.0, 3.0, 2.0, 2.0]}) == []
    assert firings(frozen, {"grad_norm": [0.0] * 50}) == []


def test_failed_fraction_needs_its_least_number():
    failing = rule({"condition": "failed_fraction", "above": 0.1}, metric="applied")
    assert firings(failing, {"applied": [0, 0, *[1] * 48]}) == []
    assert firings(failing, {"applied": [*[1] * 10, 0, 0, 0]}) == [("run", 13, 13)]
    assert firings(failing, {"applied": [*[1] * 60, *([0] + [1] * 11) * 5]}) == []


def test_age_is_by_the_clock_of_the_ranks():
    old = rule({"condition": "age", "above_s": 60}, metric="loss")
    values = [3.0, None, None, None, 2.9]
    assert firings(old, {"loss": values}, at=[0, 30, 60, 90, 91]) == [("run", 4, 4)]


def test_spread_over_replicas_tells_a_replica_that_has_gone_its_own_way():
    apart = rule({"condition": "spread_over_replicas", "above": 1e-6}, metric="compute_s")
    same = {f"compute_s@rank={rank}": [1.0, 1.0, 1.0] for rank in range(3)}
    assert firings(apart, same) == []
    same["compute_s@rank=1"] = [1.0, 1.00001, 1.0]
    assert firings(apart, same) == [("run", 2, 2)]


SLOW = {
    "condition": "all",
    "of": [
        {"condition": "relative_to_best_peer", "below": 0.75, "window": 8},
        {"condition": "relative_to_own_past", "below": 0.75, "window": 8},
    ],
}


def test_a_slow_rank_is_named_with_two_ranks_as_with_many_and_nobody_else():
    slow = rule(SLOW, metric="compute_s", scope="rank", **{"for": {"steps": 3}})
    for count in (2, 8):
        ranks = {f"compute_s@rank={rank}": steady(100, seed=rank) for rank in range(count)}
        assert firings(slow, ranks) == []
        ranks["compute_s@rank=1"] = [*steady(60), *steady(40, level=1.6)]
        [(scope, first, fired)] = firings(slow, ranks)
        assert scope == "rank 1"
        assert 60 < first <= fired <= 75


def test_nobody_is_slow_where_all_are_or_where_one_always_was():
    slow = rule(SLOW, metric="compute_s", scope="rank")
    ranks = {f"compute_s@rank={rank}": [*steady(60), *steady(40, level=2)] for rank in range(3)}
    assert firings(slow, ranks) == []
    ranks = {f"compute_s@rank={rank}": steady(100, level=1 + rank) for rank in range(3)}
    assert firings(slow, ranks) == []


def test_noise_of_a_shared_machine_is_no_slowness_and_a_steady_loss_of_speed_is():
    draw = random.Random(0)
    noisy = {
        f"compute_s@rank={rank}": [draw.choice([1.0, 1.0, 1.4, 2.5]) for _ in range(300)]
        for rank in range(3)
    }
    part = {"condition": "relative_to_best_peer", "below": 0.75, "window": 8}
    bare, damped = (
        rule({**part, "sigmas": sigmas}, metric="compute_s", scope="rank") for sigmas in (0, 2)
    )
    assert len(firings(damped, noisy)) < len(firings(bare, noisy)) * 2 / 3
    slowed = [value * (2 if 150 <= step < 250 else 1) for step, value in enumerate(steady(300))]
    told = {**noisy, "compute_s@rank=1": slowed, "compute_s@rank=0": steady(300, seed=1)}
    assert "rank 1" in {scope for scope, first, _ in firings(damped, told) if 150 < first < 170}


def test_stages_are_not_compared_with_each_other():
    slow = rule(
        {"condition": "relative_to_best_peer", "below": 0.75}, metric="compute_s", scope="rank"
    )
    unlike = {
        f"compute_s@rank={rank}@stage={rank % 2}@replica={rank // 2}": steady(60, 1 + rank % 2)
        for rank in range(4)
    }
    assert firings(slow, unlike) == []


def test_members_of_other_scopes_are_groups_of_ranks():
    high = rule({"condition": "above", "value": 1.5}, metric="compute_s")
    named = {
        f"compute_s@rank={rank}@stage={rank % 2}@replica={rank // 2}@node={'ab'[rank // 2]}": [
            1.0 + rank
        ]
        for rank in range(4)
    }
    for scope, names in {
        "rank": ["rank 1", "rank 2", "rank 3"],
        "stage": ["stage 0", "stage 1"],
        "replica": ["replica 1"],
        "node": ["node b"],
        "link": ["link a - b"],
    }.items():
        of = high.model_copy(update={"scope": scope})
        assert [name for name, _, _ in firings(of, named)] == names, scope


def test_a_nan_of_one_rank_is_the_runs_and_the_rest_is_a_mean():
    high = rule({"condition": "above", "value": 4.0}, metric="loss")
    lost = rule({"condition": "non_finite"}, metric="loss")
    hard = {f"loss@rank={rank}": [3.0, 6.0 if rank == 0 else 3.0, 3.0] for rank in range(4)}
    assert firings(high, hard) == [], "one hard batch on one of four ranks"
    hard["loss@rank=3"] = [3.0, 3.0, NAN]
    assert firings(lost, hard) == [("run", 3, 3)]


def test_all_and_any_join_signs_of_other_metrics():
    parts = [
        {"condition": "above", "value": 10},
        {"condition": "above", "metric": "loss", "value": 5},
    ]
    columns = {"grad_norm": [1, 11, 1, 11], "loss": [3.0, 3.0, 6.0, 6.0]}
    assert firings(rule({"condition": "all", "of": parts}), columns) == [("run", 4, 4)]
    assert firings(rule({"condition": "any", "of": parts}), columns) == [("run", 2, 2)]
    columns["loss"] = [None] * 4
    assert firings(rule({"condition": "all", "of": parts}), columns) == [], (
        "silence confirms nothing"
    )


def test_warm_up_and_unless_exempt_all_but_what_is_not_finite():
    warm = rule({"condition": "above", "value": 10}, warmup_steps=3)
    assert firings(warm, {"grad_norm": [99, 99, 99, 1, 99]}) == [("run", 5, 5)]
    assert firings(warm, {"grad_norm": [99, NAN, 1, 1]}) == [("run", 2, 2)]
    decaying = rule(
        {"condition": "above", "value": 10},
        unless={"condition": "below", "metric": "lr", "value": 0.1},
    )
    assert firings(decaying, {"grad_norm": [1, 99, 99], "lr": [1, 0.01, 1]}) == [("run", 3, 3)]


def test_conditions_of_third_parties_are_asked_about_finite_values_alone():
    mine = CustomCondition("falls", 2, lambda values, params: values[-1] < params["least"])
    conditions.add(mine)
    try:
        falls = rule({"condition": "custom", "name": "falls", "params": {"least": 2}})
        assert firings(falls, {"grad_norm": [3, None, 1, 3]}) == [("run", 3, 3)]
        assert firings(falls, {"grad_norm": [3, NAN, 3, 3]}) == [("run", 2, 2)]
    finally:
        del conditions.CUSTOM["falls"]


def test_third_parties_choose_among_the_actions():
    actions.add(Chooser("cautious", lambda situation, params: Hold(action="hold")))
    try:
        chosen = rule(
            {"condition": "above", "value": 1},
            mode="act",
            actions=[{"action": "choose", "by": "cautious"}],
        )
        history = history_of("h", [1], {"grad_norm": column_of([2.0])})
        [finding] = backtest([chosen], history)["findings"]
        assert finding["action"] == "hold"
    finally:
        del actions.CHOOSERS["cautious"]


CONDITIONS = [
    {"condition": "ratio_to_median", "above": 2, "clear": 1.5, "window": 16, "min_samples": 8},
    {"condition": "robust_z", "above": 3, "window": 16, "min_samples": 8},
    {"condition": "level_change", "rise": 0.1, "recent": 4, "window": 16, "min_samples": 8},
    {"condition": "relative_to_own_past", "below": 0.8, "window": 4},
    {"condition": "missing_for", "steps": 2},
    {"condition": "frozen", "steps": 2},
    {"condition": "failed_fraction", "window": 8},
    {"condition": "non_finite"},
    {"condition": "age", "above_s": 3},
    {"condition": "any", "of": [{"condition": "above", "value": 3}, {"condition": "frozen"}]},
]
series = st.lists(
    st.one_of(
        st.none(),
        st.sampled_from([0.0, 1.0, 1.0, 1.1, 0.9, 1.05, 5.0, NAN, INF]),
        st.floats(0.5, 2.0),
    ),
    min_size=1,
    max_size=120,
)


@pytest.mark.parametrize("when", CONDITIONS, ids=lambda each: each["condition"])
@settings(max_examples=30, deadline=None)
@given(values=series, cuts=st.lists(st.integers(1, 30), min_size=1, max_size=12))
def test_steps_taken_a_few_at_a_time_are_judged_as_all_at_once(when, values, cuts):
    for lasting in ({"steps": 1}, {"steps": 3, "within": 5}):
        found = rule(when, metric="loss", settle_steps=2, **{"for": lasting})
        whole, piecewise = Watch(found, ("run",)), Watch(found, ("run",))
        frame = _frame(values)
        whole.take(frame)
        at, turn = 0, 0
        while at < len(values):
            end = at + cuts[turn % len(cuts)]
            piecewise.take(_cut(frame, at, end))
            at, turn = end, turn + 1
        assert _told(whole) == _told(piecewise)


def _told(watch):
    [judgement] = watch.judgements
    return (
        judgement.state,
        judgement.firings,
        judgement.first_bad_step,
        judgement.last_bad_step,
        judgement.patience_is_over,
        judgement.is_flapping,
    )


def _frame(values):
    steps = np.arange(1, len(values) + 1)
    return Frame(("run",), steps, steps.astype(float), steps == 1, {"loss": column_of(values)})


def _cut(frame, start, end):
    loss = frame.columns["loss"]
    return Frame(
        frame.members,
        frame.steps[start:end],
        frame.at[start:end],
        frame.begins[start:end],
        {"loss": Column(loss.values[:, start:end], loss.measured[:, start:end])},
    )
