"""Failures others met with rules and alerts; docs/cases.md names them."""

from __future__ import annotations

from control.rules import packs
from control.rules.watching import judge_all
from tests.fakes import snapshots as at
from trainmaster.rule import Rule

WINDOW = 256


def test_a_m15_a_window_without_any_step_has_no_ratio_that_could_fire():
    rules = packs.load("default")
    assert all(
        judged.state == "inactive"
        for window in ([], [(1, None), (2, None)])
        for judged in judge_all(
            at.running(rules=rules, windows={rule.metric: at.samples(window) for rule in rules})
        )
        if judged.rule.metric == "applied"
    )


def test_a_m17_a_condition_that_lasts_is_one_firing_however_rarely_it_is_looked_at():
    high = Rule.model_validate(
        {
            "name": "high",
            "metric": "memory_used_ratio",
            "when": {"condition": "above", "value": 0.9},
            "for": {"seconds": 60},
        }
    )
    # Half an hour at a step a second, looked at every five minutes through a bounded window.
    seen = []
    for minute in range(0, 31, 5):
        last = 60 * minute + 61
        steps = ((step, 0.95) for step in range(max(1, last - WINDOW), last + 1))
        seen.append(at.evaluate(high, at.samples(steps, step_time_s=1.0)))
    assert [judged.state for judged in seen] == ["firing"] * 7
    assert all(len(judged.firings) == 1 for judged in seen)
    assert all(judged.firings[0].resolved_step is None for judged in seen)
