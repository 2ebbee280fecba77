"""Numeric trouble: from the bad value to the rollback, the proof that it helped, and the end of the
budget.
"""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta

import pytest

from control.decide import decide
from control.snapshot import DrillStatus, Incident
from tests.fakes import snapshots as at
from tests.fakes.ring import Ring
from tests.fakes.snapshots import NOW, change, running
from trainmaster.batches import batch_of_step
from trainmaster.orders import Drill
from trainmaster.rule import Rule

GRADIENT = "gradient not finite"


def rule(**changes):
    return Rule.model_validate(
        {
            "name": GRADIENT,
            "metric": "grad_norm",
            "when": {"condition": "non_finite"},
            "for": {"steps": 3, "within": 20},
            "severity": "critical",
            "mode": "act",
            "actions": [{"action": "rollback"}],
            **changes,
        }
    )


def alert(ring, name=GRADIENT):
    return next((each.state for each in ring.snapshot.alerts if each.rule == name), None)


def test_nan_three_times_rolls_back_before_first_bad_step():
    ring = Ring(running())
    ring.train(60)
    ring.settle()
    ring.train(63, bad=(61, 62, 63))
    ordered, begun, *_ = ring.settle()
    assert ordered.state == "recovering"
    assert ordered.attempt_end.state == "rolled_back"
    [incident] = ordered.incidents
    assert (incident.id, incident.state) == ("alpha-i1", "verifying")
    assert (incident.first_bad_step, incident.last_bad_step) == (61, 63)
    firing = next(each for each in ordered.alerts if each.rule == GRADIENT)
    assert (firing.state, firing.first_bad_step, firing.incident) == ("firing", 61, "alpha-i1")
    new = begun.new_attempt
    assert new.cause_kind == "rollback"
    assert new.resumed_from_checkpoint == "alpha-g1-s40"  # trusted since step 60; 50 is not yet
    assert new.own_skip == ((61, 63),)
    assert new.skip == ((61, 63),)
    assert new.incident == "alpha-i1"
    assert "skips batches 61 to 63" in begun.because
    assert "newest trusted checkpoint before step 61" in begun.because


def rolled_back() -> Ring:
    ring = Ring(running())
    ring.train(60)
    ring.settle()
    ring.train(63, bad=(61, 62, 63))
    ring.settle()
    ring.ready()
    ring.settle()
    return ring


def test_the_old_spike_does_not_fire_again_after_the_rollback():
    ring = rolled_back()
    assert ring.snapshot.run.state == "running"
    assert alert(ring) == "resolved"
    ring.train(82)
    ring.settle()
    assert ring.snapshot.run.generation == 2
    assert ring.snapshot.incidents


def test_probation_passes_and_closes_the_incident_with_how_long_it_lasted():
    ring = rolled_back()
    ring.advance(30)
    ring.train(83)
    [decision] = ring.settle()[:1]
    [closed] = decision.incidents
    assert (closed.state, closed.closed_as) == ("closed", "resolved")
    assert closed.verification["mttr_s"] == 30.0
    assert ring.snapshot.incidents == ()


def test_a_step_skipped_during_probation_prolongs_it_and_nothing_more():
    ring = rolled_back()
    ring.train(83, bad=(70,))
    ring.settle()
    assert ring.snapshot.incidents
    ring.train(95)
    ring.settle()
    assert ring.snapshot.incidents == ()
    assert ring.snapshot.run.generation == 2


def test_nothing_is_trusted_while_the_incident_is_open():
    ring = rolled_back()
    ring.commit(50)
    ring.train(82)
    ring.settle()
    states = {each.id: each.state for each in ring.snapshot.checkpoints}
    assert states["alpha-g2-s50"] == "committed"
    ring.train(83)
    ring.settle()
    ring.settle()
    states = {each.id: each.state for each in ring.snapshot.checkpoints}
    assert states["alpha-g2-s50"] == "trusted"


def test_firing_during_probation_climbs_the_same_incident():
    ring = rolled_back()
    ring.train(66, bad=(64, 65, 66))
    ordered, begun, *_ = ring.settle()
    [incident] = ordered.incidents
    assert (incident.id, incident.rung, len(incident.actions)) == ("alpha-i1", 1, 2)
    # Step 64 of generation 2 took batch 67: 61 to 63 were skipped before.
    assert begun.new_attempt.own_skip == ((67, 69),)
    assert begun.new_attempt.skip == ((61, 63), (67, 69))


def sticky(ring: Ring, drill: Drill) -> set[int]:
    """Return the steps that a sticky drill makes bad in the newest generation."""
    newest = ring.snapshot.attempt
    first = newest.resumed_from_step + 1
    carried = next(each.drill for each in reversed(ring.snapshot.drills))
    batches = carried.batches or ((drill.at_step, drill.at_step + drill.steps - 1),)
    return {
        step
        for step in range(first, first + 100)
        if any(low <= batch_of_step(step, newest.skip) <= high for low, high in batches)
    }


def test_sticky_fault_ends_in_budget_exhausted():
    drill = Drill(id=1, fault="nan", rank=1, at_step=61, steps=60, sticky=True)
    ring = Ring(running(drills=(DrillStatus(drill, 1),)))
    ring.train(60)
    ring.settle()
    for _ in range(10):
        bad = sticky(ring, drill)
        first = min(bad)
        ring.train(first + 2, bad=bad)
        ring.settle()
        if ring.snapshot.run.state == "failed":
            break
        ring.ready()
        ring.settle()
    run = ring.snapshot.run
    assert (run.state, run.code) == ("failed", "budget_exhausted")
    assert "rollback" in run.because
    assert run.generation == 4
    assert ring.snapshot.incidents == ()
    assert ring.snapshot.drills[-1].drill.batches == ((61, 120),)


def test_an_isolated_skipped_update_heals():
    ring = Ring(running())
    ring.train(52, bad=(52,))
    ring.settle()
    assert alert(ring) == "pending"
    ring.train(72)
    ring.settle()
    assert alert(ring) == "inactive"
    assert ring.snapshot.run.generation == 1
    assert ring.snapshot.num_incidents == 0


def test_two_bad_steps_heal_too():
    ring = Ring(running())
    ring.train(80, bad=(55, 60))
    ring.settle()
    assert ring.snapshot.run.generation == 1


def test_an_observing_rule_warns_and_does_nothing():
    ring = Ring(running(rules=(rule(mode="observe"),)))
    ring.train(63, bad=(61, 62, 63))
    ring.settle()
    assert alert(ring) == "firing"
    assert ring.snapshot.run.generation == 1
    assert ring.snapshot.num_incidents == 0


def test_without_a_trusted_checkpoint_one_that_healthy_steps_followed_is_used():
    found = (at.checkpoint(40, "committed"), at.checkpoint(50, "committed"))
    ring = Ring(running(checkpoints=tuple(replace(each, verified_at=None) for each in found)))
    ring.train(53, bad=(51, 52, 53))
    ring.settle()
    assert ring.snapshot.attempt.resumed_from_checkpoint == "alpha-g1-s40"


def test_without_a_checkpoint_before_the_first_bad_step_it_begins_again_and_still_skips():
    ring = Ring(running(checkpoints=(at.checkpoint(50),)))
    snapshot = ring.snapshot
    ring.tell(windows=at.windows(7, bad=(5, 6, 7)), attempts=(at.attempt(last_step=7),))
    ring.settle()
    new = ring.snapshot.attempt
    assert (new.resumed_from_step, new.skip) == (0, ((5, 7),))
    assert snapshot.run.generation == 1


def test_a_lower_learning_rate_is_a_window_after_the_checkpoint():
    lower = {"action": "rollback", "skip": False, "lr_factor": 0.5, "lr_factor_steps": 50}
    ring = Ring(running(rules=(rule(actions=[lower]),)))
    ring.train(63, bad=(61, 62, 63))
    ring.settle()
    new = ring.snapshot.attempt
    assert new.lr_windows == ((31, 80, 0.5),)
    assert new.lr_factor == 0.5
    assert new.skip == ()


def test_a_restart_after_the_rollback_keeps_what_differs_and_its_incident():
    ring = rolled_back()
    ring.train(70)
    ring.kill()
    ring.settle()
    new = ring.snapshot.attempt
    assert new.cause_kind == "restart"
    assert new.skip == ((61, 63),)
    assert new.own_skip == ()
    assert new.incident == "alpha-i1"


def test_a_rank_killed_between_rollback_and_launch_does_not_lose_the_rollback():
    ring = Ring(running())
    ring.train(63, bad=(61, 62, 63))
    ring.turn()
    assert ring.snapshot.run.state == "recovering"
    ring.kill()
    ring.settle()
    assert ring.snapshot.attempt.cause_kind == "rollback"


def test_rollbacks_on_several_incidents_share_one_budget():
    ring = Ring(running(spec=at.spec(recovery={"max_rollbacks": 1})))
    ring.train(63, bad=(61, 62, 63))
    ring.settle()
    ring.ready()
    ring.train(90)
    ring.settle()
    assert ring.snapshot.incidents == ()
    ring.train(93, bad=(91, 92, 93))
    ring.settle()
    run = ring.snapshot.run
    assert (run.state, run.code) == ("failed", "budget_exhausted")
    assert "rollbacks within 24 h: 1 (recovery.max_rollbacks is 1)" in run.because


def test_max_actions_of_the_rule_ends_in_budget_exhausted():
    ring = Ring(running(rules=(rule(max_actions=1),)))
    ring.train(63, bad=(61, 62, 63))
    ring.settle()
    ring.ready()
    ring.train(66, bad=(64, 65, 66))
    ring.settle()
    run = ring.snapshot.run
    assert (run.state, run.code) == ("failed", "budget_exhausted")
    assert "max_actions is 1" in run.because
    assert "rollback" in run.because


@pytest.mark.parametrize(("action", "state"), [("rebalance", "running"), ("rollback", "failed")])
def test_a_rule_that_can_only_make_a_run_faster_does_not_end_it(action, state):
    taken = {"action": action, "generation": 0, "first_bad_step": 10}
    spent = Incident(
        id="alpha-i1",
        opened_at=NOW,
        state="open",
        rule=GRADIENT,
        rung=1,
        first_bad_step=10,
        last_bad_step=12,
        actions=(taken,),
    )
    rules = (rule(max_actions=1, actions=[{"action": action}]),)
    ring = Ring(running(rules=rules, incidents=(spent,), num_incidents=1))
    ring.train(63, bad=(61, 62, 63))
    ring.settle()
    assert ring.snapshot.run.state == state
    assert ring.snapshot.incidents == (), "it is closed, and a person must look"


def test_a_cooling_rule_does_not_open_another_incident():
    acted = {GRADIENT: NOW - timedelta(seconds=30)}
    snapshot = running(rules=(rule(cooldown_s=60),), acted_at=acted)
    snapshot = change(snapshot, windows=at.windows(63, bad=(61, 62, 63)))
    assert decide(snapshot, now=NOW).incidents == ()
    cool = change(snapshot, acted_at={GRADIENT: NOW - timedelta(seconds=60)})
    assert decide(cool, now=NOW).incidents != ()


def test_two_rules_that_fire_at_once_share_one_incident_and_one_rollback():
    ring = Ring(running())
    ring.train(63, bad=(61, 62, 63))
    found = dict(ring.snapshot.windows)
    found["loss"] = tuple(
        replace(each, value=math.nan) if each.step > 60 else each for each in found["loss"]
    )
    ring.tell(windows=found)
    ordered = ring.turn()
    assert len(ordered.incidents) == 1
    firing = [each for each in ordered.alerts if each.state == "firing"]
    assert {each.incident for each in firing} == {"alpha-i1"}
    assert {each.rule for each in firing} >= {GRADIENT, "loss not finite"}


def test_a_rule_may_hold_the_ranks_until_a_person_decides():
    ring = Ring(running(rules=(rule(actions=[{"action": "hold"}]),)))
    ring.train(63, bad=(61, 62, 63))
    ring.settle()
    assert [each.kind for each in ring.snapshot.orders] == ["hold"]
    assert ring.snapshot.incidents[0].state == "waiting"
    assert ring.snapshot.run.desired == "held"


def test_a_rule_may_stop_the_run():
    ring = Ring(running(rules=(rule(actions=[{"action": "stop"}]),)))
    ring.train(63, bad=(61, 62, 63))
    ring.settle()
    assert (ring.snapshot.run.state, ring.snapshot.run.desired) == ("stopping", "stopped")


def test_a_rule_may_take_a_checkpoint_and_does_so_once():
    ring = Ring(running(rules=(rule(actions=[{"action": "checkpoint"}]),)))
    ring.train(63, bad=(61, 62, 63))
    ring.settle()
    assert [each.kind for each in ring.snapshot.orders] == ["checkpoint"]


def test_what_was_over_before_anybody_looked_is_shown_and_not_acted_on():
    ring = Ring(running())
    ring.train(100, bad=(61, 62, 63))
    ring.turn()
    assert alert(ring) == "firing"
    ring.settle()
    assert alert(ring) == "resolved"
    assert ring.snapshot.run.generation == 1


def test_a_removed_rule_ends_its_alert():
    ring = Ring(running(rules=(rule(mode="observe"),)))
    ring.train(63, bad=(61, 62, 63))
    ring.settle()
    ring.tell(rules=())
    ring.settle()
    assert alert(ring) == "resolved"


def test_the_end_of_the_run_closes_what_is_open():
    ring = rolled_back()
    found = ring.snapshot.ranks
    for number in range(4):
        told = {"step": 400, "ordered": False}
        found = at.with_rank(
            found, number, state="exited", exit_code=0, exited_at=NOW, finished=told
        )
    ring.tell(ranks=found)
    ring.settle()
    assert ring.snapshot.run.state == "succeeded"
    assert ring.snapshot.incidents == ()
