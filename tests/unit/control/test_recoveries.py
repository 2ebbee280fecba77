"""What failures cost: restarts by cause, steps that were lost, times to recovery."""

from __future__ import annotations

from datetime import timedelta

from control.recovery.recoveries import Trained, of_run, percentile, together
from tests.fakes.snapshots import NOW, attempt


def after(seconds: float):
    return NOW + timedelta(seconds=seconds)


def begun(generation: int, kind: str, by: dict[str, object] | None = None, **changes: object):
    return attempt(generation, cause_kind=kind, ended_by=by, **changes)


DEATH = {"kind": "death", "rank": 3, "node": "oak"}


def test_a_recovery_lasts_from_the_last_step_to_the_next_one():
    attempts = [
        begun(1, "start", DEATH, last_step=50),
        begun(2, "restart", resumed_from_step=40, last_step=60),
    ]
    found = of_run(attempts, {1: Trained(after(0), after(100)), 2: Trained(after(107), after(200))})
    assert found.by_cause == {"death": 1}
    assert found.lost_steps == 10
    assert found.times_s == (7.0,)


def test_attempts_that_do_no_step_lengthen_the_recovery_that_they_are_part_of():
    passing = {"kind": "passing", "rank": 0, "node": "oak"}
    attempts = [
        begun(1, "start", DEATH, last_step=50),
        begun(2, "restart", passing, resumed_from_step=50, first_step=None, last_step=None),
        begun(3, "retry", passing, resumed_from_step=50, first_step=None, last_step=None),
        begun(4, "retry", resumed_from_step=50, last_step=60),
    ]
    found = of_run(attempts, {1: Trained(after(0), after(100)), 4: Trained(after(130), after(200))})
    assert found.by_cause == {"death": 1, "passing": 2}
    assert (found.lost_steps, found.times_s) == (0, (30.0,))


def test_what_people_begin_is_no_recovery_and_what_is_not_over_has_no_time():
    attempts = [
        begun(1, "start", last_step=50),
        begun(2, "restore", DEATH, resumed_from_step=20, last_step=60),
        begun(3, "restart", resumed_from_step=60, first_step=None, last_step=None),
    ]
    trained = {1: Trained(after(0), after(9)), 2: Trained(after(20), after(30))}
    found = of_run(attempts, trained)
    assert found.by_cause == {"death": 1}
    assert (found.lost_steps, found.times_s) == (0, ())


def test_a_drill_is_counted_as_one_and_a_move_costs_no_step():
    attempts = [
        begun(1, "start", {**DEATH, "kind": "hang", "drill": "hang"}, last_step=50),
        begun(2, "restart", {"kind": "moved"}, resumed_from_step=40, last_step=70),
        begun(3, "degrade", resumed_from_step=70, last_step=90),
    ]
    found = of_run(attempts, {})
    assert found.by_cause == {"hang": 1, "degrade": 1}
    assert (found.num_drills, found.lost_steps) == (1, 10)


def test_of_several_runs_the_percentiles_are_over_all_recoveries():
    one = of_run(
        [begun(1, "start", DEATH, last_step=5), begun(2, "restart", resumed_from_step=5)],
        {1: Trained(after(0), after(1)), 2: Trained(after(3), after(4))},
    )
    found = together([one, one]).to_json()
    assert found["restarts"] == 2
    assert (found["mttr_p50_s"], found["mttr_p95_s"], found["recovered"]) == (2.0, 2.0, 2)
    assert percentile([], 0.5) is None
    assert percentile(list(range(1, 101)), 0.95) == 95
    assert percentile([3.0, 1.0], 0.5) == 1.0
