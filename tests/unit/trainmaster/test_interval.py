"""How often checkpoints pay."""

import math

import pytest
from pydantic import ValidationError

from trainmaster.interval import (
    PRIOR_NODE_S,
    Pace,
    at_most,
    choose,
    daly_s,
    mean_time_between_failures,
)
from trainmaster.spec import CheckpointSpec

DAY = 86400.0


def waste(interval_s: float, stall_s: float, mtbf_s: float) -> float:
    """Daly's exact cost model (2006, eq. 13 with no restart time): wall time per useful second."""
    return mtbf_s * math.expm1((interval_s + stall_s) / mtbf_s) / interval_s


@pytest.mark.parametrize("stall_s", [0.01, 1.0, 30.0, 600.0])
@pytest.mark.parametrize("mtbf_s", [1800.0, DAY, 30 * DAY])
def test_no_other_interval_wastes_noticeably_less(stall_s: float, mtbf_s: float) -> None:
    chosen = daly_s(stall_s, mtbf_s)
    least = min(waste(chosen * factor / 100, stall_s, mtbf_s) for factor in range(50, 200))
    assert waste(chosen, stall_s, mtbf_s) == pytest.approx(least, rel=2e-3)


def test_a_stall_beyond_reason_is_taken_once_per_expected_failure() -> None:
    assert daly_s(100.0, 40.0) == 40.0


def test_a_fleet_is_judged_by_the_prior_until_it_has_a_past_of_its_own() -> None:
    assert mean_time_between_failures([], num_nodes=1) == PRIOR_NODE_S
    assert mean_time_between_failures([], num_nodes=4) == PRIOR_NODE_S / 4
    seen = [(DAY, 100, True)] * 30  # 3,000 days of a node, 30 failures
    assert mean_time_between_failures(seen, num_nodes=1) == pytest.approx(98 * DAY, rel=0.01)
    quiet = [(DAY, 100, False)] * 30
    assert mean_time_between_failures(quiet, num_nodes=1) > 3000 * DAY


def test_it_is_as_long_as_costs_ask_for() -> None:
    chosen = choose(Pace(1.0, 20.0, 1.0), mtbf_s=3 * 3600.0, steps=100_000)
    assert chosen.every_steps == 146
    assert "a failure is to be expected every 3 h" in chosen.because
    assert "146 steps" in chosen.because
    assert chosen.told == chosen.because


def test_it_is_no_shorter_than_one_takes_to_write() -> None:
    chosen = choose(Pace(0.001, 300.0, 1.0), mtbf_s=3600.0, steps=100_000)
    assert chosen.every_steps == 300
    assert "writing one takes 5 min, 300 steps" in chosen.because


def test_no_more_than_a_tenth_of_the_run_is_put_at_risk() -> None:
    chosen = choose(Pace(0.5, 1.0, 0.01), mtbf_s=10 * DAY, steps=5_000)
    assert chosen.every_steps == 500
    assert "no more than 500 of 5000 steps" in chosen.because


def test_what_is_unusual_is_said_to_be() -> None:
    chosen = choose(Pace(0.001, 0.01, 60.0), mtbf_s=DAY, steps=10_000)
    assert chosen.every_steps < 100
    assert chosen.is_unusual
    assert chosen.told.endswith("Usual are 100 to 1000.")


@pytest.mark.parametrize("steps", [1, 3, 400, 100_000])
def test_a_run_has_at_least_one_whatever_was_measured(steps: int) -> None:
    for pace in (Pace(0.0, 0.0, 0.0), Pace(1e9, 1e9, 1e-9), Pace(1.0, 1.0, 1.0)):
        assert 1 <= choose(pace, mtbf_s=1.0, steps=steps).every_steps <= steps
    assert 1 <= at_most(steps) <= min(steps, 1000)


def test_states_in_memory_alone_need_the_memory_tier() -> None:
    asked = {"memory": "off", "memory_every_steps": 10}
    with pytest.raises(ValidationError, match="memory_every_steps 10 needs memory auto"):
        CheckpointSpec.model_validate(asked)
    assert CheckpointSpec.model_validate({"memory_every_steps": 10}).memory == "auto"
    with pytest.raises(ValidationError, match="when_busy"):
        CheckpointSpec.model_validate({"when_busy": "hurry"})
