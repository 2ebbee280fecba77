"""Rules tried on history, by the fold that runs live."""

from __future__ import annotations

import pytest

from control.rules import packs
from control.rules.backtest import backtest, failed_tests
from control.rules.frame import column_of
from control.rules.history import history_of
from control.rules.names import columns_of
from trainmaster.rule import RuleFile

NAN = float("nan")


def history(columns, steps=None, at_s=None):
    table = columns_of({name: column_of(values) for name, values in columns.items()})
    length = max((len(values) for values in columns.values()), default=0)
    return history_of(
        "made up",
        steps or range(1, length + 1),
        table.of_run,
        at=at_s,
        of_ranks=table.of_ranks,
        seats=table.seats,
    )


def found(columns, *names, **changes):
    rules = [rule for rule in packs.load("default") if not names or rule.name in names]
    return backtest(rules, history(columns, **changes))


def test_a_firing_is_told_with_where_it_began_and_what_would_have_been_done():
    values = [1.0] * 10 + [NAN] * 3 + [1.0] * 30
    told = found({"grad_norm": values}, "gradient not finite")
    [finding] = told["findings"]
    assert finding["rule"] == "gradient not finite"
    assert (finding["first_bad_step"], finding["fired_step"]) == (11, 13)
    assert finding["resolved_step"] == 33
    assert finding["action"] == "rollback"
    assert told["destructive"] == 1
    assert told["steps"] == 43
    assert told["per_10k_steps"] == pytest.approx(10_000 / 43)


def test_an_observing_rule_would_only_warn():
    told = found({"latency_ms": [60.0] * 12}, at_s=[15.0 * each for each in range(12)])
    assert [each["rule"] for each in told["findings"]] == ["slow communication"]
    assert [each["action"] for each in told["findings"]] == [None]
    assert told["destructive"] == 0


def test_rules_in_seconds_need_time_and_others_their_metric():
    told = found({"latency_ms": [60.0] * 100})
    assert told["findings"] == []
    assert "slow communication" in told["not_applicable"]
    assert "seconds" in told["not_applicable_because"]["slow communication"]
    assert "loss not finite" in told["not_applicable"]


def test_a_lone_loss_that_is_not_a_number_is_found_though_its_gradient_is_finite():
    losses = [3.0] * 60 + [NAN] + [3.0] * 60
    told = found({"loss": losses, "grad_norm": [1.0 + 0.01 * (n % 7) for n in range(121)]})
    [finding] = told["findings"]
    assert (finding["rule"], finding["fired_step"]) == ("one loss not finite", 61)
    assert (finding["action"], told["destructive"]) == (None, 0)


@pytest.mark.parametrize("norm", [1e308, 5e-324])
def test_a_constant_norm_has_not_vanished_however_large_or_small_it_is(norm):
    rules = ("gradient norm vanishes", "gradient norm explodes", "lower throughput")
    told = found({"grad_norm": [norm] * 300, "tokens_per_s": [norm] * 300}, *rules)
    assert told["findings"] == []


def test_steps_keep_their_numbers():
    told = found({"grad_norm": [NAN] * 3}, steps=[100, 101, 102])
    assert told["findings"][0]["first_bad_step"] == 100


def test_an_empty_source_has_no_findings():
    assert found({})["per_10k_steps"] == 0


def test_the_default_pack_passes_its_own_tests_and_a_wrong_expectation_is_told():
    pack = packs.read("default")
    assert failed_tests(pack) == []
    wrong = pack.model_dump(by_alias=True)
    wrong["tests"][0]["expect"] = {"fired_step": 4}
    wrong["tests"][1]["rule"] = "nobody"
    first, second = failed_tests(RuleFile.model_validate(wrong))
    assert "fired at 5, expected at 4" in first
    assert "nobody" in second
