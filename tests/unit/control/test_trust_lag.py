"""How far the newest trusted checkpoint is behind, and when a rule says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from control.rules import sheet
from control.rules.backtest import backtest, metrics_of
from control.rules.judgement import Judgement
from control.rules.trust import Trust
from control.rules.watching import judge_all
from control.snapshot import Checkpoint, Sample
from tests.fakes import snapshots as at

TRACE = Path(__file__).parents[2] / "data" / "curves" / "trust_falls_behind.csv"
RULE = next(rule for rule in at.RULES if rule.name == "trust falls behind")


def lags(trust: Trust, steps: list[int], instants: list[float]) -> list[float | None]:
    ratios, known = trust.lag_ratios(np.array(steps), np.array(instants))
    return [
        float(ratio) if is_known else None
        for ratio, is_known in zip(ratios, known.tolist(), strict=True)
    ]


def test_before_any_is_trusted_it_counts_from_where_the_attempt_began():
    assert lags(Trust(50, 10), [50, 55, 70], [0.0, 1.0, 2.0]) == [None, 0.5, 2.0]


def test_a_step_counts_from_what_was_trusted_when_it_ended():
    trust = Trust(0, 10, ((100.0, 20), (200.0, 40)))
    assert lags(trust, [30, 35, 60, 65], [99.0, 100.0, 199.0, 200.0]) == [None, 1.5, 4.0, 2.5]


def test_an_older_one_that_is_trusted_later_brings_nothing_nearer():
    trust = Trust(0, 10, ((100.0, 40), (200.0, 20)))
    assert lags(trust, [60], [300.0]) == [2.0]


def test_what_is_off_the_lineage_or_not_trusted_does_not_count():
    checkpoints = (
        at.checkpoint(10, state="trusted", trusted_at=at.NOW),
        at.checkpoint(20, state="trusted", trusted_at=at.NOW, abandoned=True),
        at.checkpoint(30, state="quarantined", trusted_at=at.NOW),
        at.checkpoint(40, state="committed"),
    )
    told = at.samples({149: 1.0, 150: 1.0}, step_time_s=60.0)
    assert judge(told, checkpoints).value == pytest.approx(140 / 15)


def test_nothing_is_said_before_the_first_attempt():
    snapshot = replace(at.running(rules=(RULE,)), attempts=(), ranks=())
    assert all(each.value is None for each in judge_all(snapshot))


def judged(*trusted: int, minutes: float, every: int = 10) -> Judgement:
    """Return what the rule says of 150 steps in so many minutes, of which the checkpoints of some
    were trusted five steps later.
    """
    step_time_s = minutes * 60 / 150
    told = at.samples(((step, 1.0) for step in range(1, 151)), step_time_s=step_time_s)
    begun = told[0].at
    checkpoints = tuple(
        at.checkpoint(step, trusted_at=begun + timedelta(seconds=(step + 5) * step_time_s))
        for step in trusted
    )
    return judge(told, checkpoints, every=every)


def judge(
    told: Sequence[Sample], checkpoints: Sequence[Checkpoint], *, every: int = 10
) -> Judgement:
    spec = at.spec(checkpoint={"every_steps": every, "trust_after_steps": 5})
    snapshot = at.running(
        spec=spec,
        rules=(RULE,),
        windows={"step_time_s": tuple(told)},
        checkpoints=tuple(checkpoints),
        attempts=(replace(at.attempt(), checkpoint_every=every),),
    )
    [judgement] = judge_all(snapshot)
    return judgement


def test_a_quarter_of_an_hour_without_a_trusted_checkpoint_fires():
    judgement = judged(minutes=60)
    assert (judgement.state, judgement.first_bad_step) == ("firing", 31)


def test_one_that_is_trusted_again_ends_it():
    assert judged(130, minutes=60).state != "firing"


@pytest.mark.parametrize(
    ("trusted", "minutes", "every"), [((), 10, 10), ((50, 100), 60, 50), ((), 60, 100)]
)
def test_nothing_is_said_of_small_runs_nor_within_the_interval(trusted, minutes, every):
    assert judged(*trusted, minutes=minutes, every=every).state != "firing"


def test_the_trace_of_a_store_that_went_away_is_found_where_the_live_run_was():
    with TRACE.open(encoding="utf-8") as lines:
        [history] = sheet.read(TRACE.name, lines, metrics_of((RULE,)))
    [found] = backtest((RULE,), history)["findings"]
    assert (found["first_bad_step"], found["fired_step"], found["resolved_step"]) == (
        111,
        535,
        None,
    )
