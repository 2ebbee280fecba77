"""Ranks that stand still: when that is a hang, who is to blame, and what is done about it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from control.liveness.hangs import FLOOR_S, Limit, find, learned_limit
from control.snapshot import Pulse, Stacks
from tests.fakes import snapshots as at
from tests.fakes.ring import Ring
from tests.fakes.snapshots import NOW, change, ranks, running, with_rank

TAKEN = at.samples(dict.fromkeys(range(1, 51), 0.1))


def pulse(activity: str = "wait", *, still_s: float = 12.3, **changes: object) -> Pulse:
    found = Pulse("step", activity, 51, still_s, still_s)
    return replace(found, **changes)  # type: ignore[arg-type]


def stuck(guilty: Pulse, number: int = 2, waiting: Pulse | None = None, **changes: object):
    """Alpha with one rank that stands still and three that wait for it."""
    found = with_rank(ranks(pulse=waiting or pulse()), number, pulse=guilty)
    windows = {**at.windows(50), "step_time_s": TAKEN}
    return running(ranks=found, windows=windows, **changes)


def found_in(snapshot):
    return find(snapshot, snapshot.attempts[-1], now=NOW)


def test_the_limit_is_five_times_what_steps_take_and_ten_seconds_at_least():
    quick = learned_limit(at.samples(dict.fromkeys(range(1, 21), 0.1)), 1)
    assert quick == Limit(FLOOR_S, 0.1)
    assert str(quick) == "5 x p95 = 0.5 s, at least 10 s"
    uneven = {step: 4.0 if step % 10 == 0 else 1.0 for step in range(1, 101)}
    slow = learned_limit(at.samples(uneven), 1)
    assert slow == Limit(20.0, 4.0)
    assert str(slow) == "5 x p95 = 20 s"


def test_the_first_steps_of_a_generation_are_no_measure():
    steps = {step: 60.0 if step <= 46 else 0.1 for step in range(1, 51)}
    assert learned_limit(at.samples({k: v for k, v in steps.items() if k < 5}), 1) is None
    assert learned_limit(at.samples(steps), 2) is None, "nor those of another generation"


@pytest.mark.parametrize(
    ("guilty", "how"),
    [
        (pulse("compute"), "It has been computing for 12.3 s while rank 0, 1, 3 waited"),
        (pulse("data"), "It has been reading data for 12.3 s while rank 0, 1, 3 waited"),
        (pulse("other"), "It has been at work for 12.3 s while rank 0, 1, 3 waited"),
        (pulse("wait", frozen=True), "Its process is stopped, by a signal or a debugger."),
        (pulse("wait", step=50), "All ranks wait for each other"),
        (pulse("checkpoint", section="checkpoint", frozen=True), "Its process is stopped"),
    ],
)
def test_the_guilty_one_is_named_and_not_those_it_holds_up(guilty, how):
    hang = found_in(stuck(guilty))
    assert hang is not None
    assert hang.rank == 2
    assert how in hang.how
    assert hang.cause.startswith(f"rank 2 hung at step {guilty.step} (no progress for 12.3 s; 5 x")


@pytest.mark.parametrize(
    "snapshot",
    [
        stuck(pulse("compute", still_s=9.9)),
        stuck(pulse("compute", section="checkpoint")),
        stuck(pulse("compute", section="evaluating")),
        stuck(pulse("compute", section="restoring")),
        stuck(pulse("compute", section="from_a_newer_release")),
        change(stuck(pulse("compute")), ranks=with_rank(ranks(pulse=pulse()), 1, pulse=None)),
        change(stuck(pulse("compute")), nodes=(at.node(silent_s=5),)),
        change(stuck(pulse("compute")), windows=at.windows(50)),
    ],
    ids=[
        "for too short a time",
        "saving",
        "evaluating",
        "restoring",
        "in an unknown section",
        "another rank comes on",
        "silence is no evidence",
        "nothing learned yet",
    ],
)
def test_it_is_no_hang_while(snapshot):
    assert found_in(snapshot) is None


def test_a_pulse_told_by_a_slow_plan_is_measured_by_its_own_steps():
    slow = at.samples(dict.fromkeys(range(1, 51), 5.0))
    snapshot = change(stuck(pulse("compute")), windows={**at.windows(50), "step_time_s": slow})
    assert found_in(snapshot) is None


def test_stacks_come_first_then_the_attempt_ends_and_the_next_one_begins():
    ring = Ring(stuck(pulse("compute")))
    first = ring.turn()
    assert first.attempt_end is None
    [call] = first.stacks
    assert call.ranks is None
    assert call.incident == "alpha-i1"
    [incident] = first.incidents
    assert (incident.rule, incident.state) == ("hang", "verifying")
    [alert] = [each for each in first.alerts if each.rule == "hang"]
    assert (alert.scope, alert.state, alert.first_bad_step) == ("rank 2", "firing", 51)
    [told] = [each for each in first.events if each.kind == "alert_firing"]
    assert told.data["scope"] == alert.scope
    assert ring.turn().attempt_end is None, "the stacks are on their way"
    calls = (Stacks(1, NOW, None, "alpha-i1", told=frozenset(range(4))),)
    ring.tell(attempts=(replace(ring.snapshot.attempts[-1], stacks=calls),))
    ended, begun = ring.settle()[:2]
    assert ended.attempt_end.because == (
        "rank 2 hung at step 51 (no progress for 12.3 s; 5 x p95 = 0.5 s, at least 10 s)"
    )
    assert begun.new_attempt.cause == ended.attempt_end.because
    assert begun.new_attempt.resumed_from_step == 50
    assert begun.new_attempt.incident == "alpha-i1"


def test_stacks_that_never_come_are_not_waited_for_for_long():
    ring = Ring(stuck(pulse("compute", frozen=True)))
    ring.turn()
    calls = (Stacks(1, NOW, None, "alpha-i1"),)
    ring.tell(attempts=(replace(ring.snapshot.attempts[-1], stacks=calls),))
    ring.advance(7.9)
    assert ring.turn().attempt_end is None
    ring.advance(0.1)
    assert ring.turn().attempt_end is not None


def test_twenty_healthy_steps_close_the_incident_and_its_alert_is_over():
    ring = Ring(stuck(pulse("compute")))
    ring.turn()
    calls = (Stacks(1, NOW, None, "alpha-i1", told=frozenset(range(4))),)
    ring.tell(attempts=(replace(ring.snapshot.attempts[-1], stacks=calls),))
    ring.settle()
    ring.ready()
    ring.settle()
    [alert] = [each for each in ring.snapshot.alerts if each.rule == "hang"]
    assert alert.state == "resolved"
    ring.train(71)
    ring.settle()
    assert ring.snapshot.incidents == ()


def test_a_hang_that_goes_by_itself_is_healed_and_a_later_one_is_seen_anew():
    ring = Ring(stuck(pulse("compute", frozen=True)))
    ring.turn()
    calls = (Stacks(1, NOW, None, "alpha-i1", told=frozenset()),)
    ring.tell(
        attempts=(replace(ring.snapshot.attempts[-1], stacks=calls),), ranks=ranks(pulse=None)
    )
    healed = ring.turn()
    [incident] = healed.incidents
    assert (incident.closed, incident.closed_as) == (True, "healed")
    [alert] = [each for each in healed.alerts if each.rule == "hang"]
    assert alert.state == "resolved"
    [told] = [each for each in healed.events if each.kind == "alert_resolved"]
    assert told.data["scope"] == alert.scope
    ring.advance(60)
    ring.tell(ranks=with_rank(ranks(pulse=pulse()), 1, pulse=pulse("compute")))
    again = ring.turn()
    assert again.attempt_end is None
    assert again.stacks


def test_a_hang_costs_one_restart_and_hanging_on_ends_in_a_spent_budget():
    ring = Ring(stuck(pulse("compute")))
    for number in range(1, 5):
        ring.turn()
        newest = ring.snapshot.attempts[-1]
        calls = (Stacks(1, ring.now, None, "alpha-i1", told=frozenset(range(4))),)
        ring.tell(attempts=(*ring.snapshot.attempts[:-1], replace(newest, stacks=calls)))
        ring.settle()
        ring.advance(120)
        ring.settle()
        if ring.snapshot.run.state == "failed":
            break
        ring.ready()
        ring.settle()
        ring.train(60)
        taken = at.samples(dict.fromkeys(range(51, 61), 0.1), generation=number + 1)
        windows = {**ring.snapshot.windows, "step_time_s": taken}
        found = with_rank(ranks(pulse=pulse()), 2, pulse=pulse("compute"))
        ring.tell(ranks=found, windows=windows)
    run = ring.snapshot.run
    assert (run.state, run.code) == ("failed", "budget_exhausted")
    assert "rank 2 hung" in run.because
    assert ring.now - NOW < timedelta(hours=1)
